#include "hydra/models/conv_net.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "hydra/core/error.h"
#include "loss_layers.h"

namespace hydra {
namespace {

class ConvolutionStage final : public Layer {
 public:
  ConvolutionStage(std::int64_t in, std::int64_t out)
      // Batch norm subtracts the mean, and with it any bias.
      : convolution_(register_module(
            "conv",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(out))) {}

  Tensors forward(const Tensors& inputs, LayerContext&) override {
    detail::require_one_input(inputs.size(), "convolution stage");
    return {at::max_pool2d(at::relu(norm_->forward(convolution_->forward(inputs[0]))), 2)};
  }

 private:
  torch::nn::Conv2d convolution_;
  torch::nn::BatchNorm2d norm_;
};

class Classifier final : public Layer {
 public:
  Classifier(std::int64_t features, std::int64_t classes)
      : linear_(register_module("linear", torch::nn::Linear(features, classes))) {}

  Tensors forward(const Tensors& inputs, LayerContext&) override {
    detail::require_one_input(inputs.size(), "classifier");
    return {linear_->forward(inputs[0].flatten(1))};
  }

 private:
  torch::nn::Linear linear_;
};

void require_positive(const char* option, std::int64_t value) {
  if (value < 1) {
    throw InvalidArgument(std::string("conv_net: ") + option + " is " + std::to_string(value) +
                          ": it must be at least 1");
  }
}

}  // namespace

std::shared_ptr<Model> make_conv_net(const ConvNetOptions& options) {
  require_positive("input_channels", options.input_channels);
  require_positive("image_size", options.image_size);
  require_positive("classes", options.classes);
  auto model = std::make_shared<Model>("conv_net");
  std::int64_t in = options.input_channels;
  std::int64_t size = options.image_size;
  for (std::size_t i = 0; i < options.channels.size(); ++i) {
    require_positive("channels of a stage", options.channels[i]);
    size /= 2;
    if (size < 1) {
      throw InvalidArgument("conv_net: " + std::to_string(options.channels.size()) +
                            " stages halve an image of " + std::to_string(options.image_size) +
                            " pixels to nothing: give fewer channels or a larger image_size");
    }
    model->add("conv" + std::to_string(i), layer<ConvolutionStage>(in, options.channels[i]));
    in = options.channels[i];
  }
  model->add("classifier", layer<Classifier>(in * size * size, options.classes));
  model->add("loss", layer<detail::CrossEntropyLoss>());
  return model;
}

}  // namespace hydra
