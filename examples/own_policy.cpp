// A policy of one's own: which job's unit a device runs next.

#include <torch/types.h>

#include <algorithm>
#include <cstdio>

#include "hydra/hydra.h"

/// The job that is nearest to its end first, but never one whose shard has still to be brought to
/// the device while another's is there.
class NearestEnd final : public hydra::Policy {
 public:
  std::string_view name() const noexcept override { return "nearest end"; }

  std::optional<hydra::Decision> choose(const hydra::ScheduleView& view) const override {
    if (view.jobs.empty()) return std::nullopt;
    const auto chosen = std::min_element(
        view.jobs.begin(), view.jobs.end(), [](const hydra::JobView& a, const hydra::JobView& b) {
          return std::pair(a.missing, a.remaining) < std::pair(b.missing, b.remaining);
        });
    return hydra::Decision{static_cast<std::size_t>(chosen - view.jobs.begin()),
                           chosen->missing == hydra::Bytes(0) ? "already there" : "nearest end"};
  }
};

struct Noise : hydra::DataSource {
  hydra::Batch batch(std::int64_t step) override {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step));
    const auto x = torch::randn({16, 64}, generator);
    return {.rows = 16,
            .inputs = {x},
            .side = {{"targets", x.flip(1)}},
            .loss_denominator = 16,
            .tokens = 16};
  }
};

int main() {
  const auto model = hydra::make_mlp({.widths = {64, 256, 256, 64}});
  hydra::Runtime runtime({.devices = {{.name = "cpu0", .memory = hydra::parse_bytes("1MiB")}},
                          .policy = std::make_shared<NearestEnd>()});
  for (const std::int64_t steps : {10, 20, 40}) {
    runtime.submit({.name = std::to_string(steps) + " steps",
                    .model = model,
                    .data = std::make_shared<Noise>(),
                    .max_steps = steps});
  }
  runtime.wait_all();
  std::printf("%s", hydra::to_table(runtime.summary()).c_str());
  for (const auto& job : runtime.jobs()) job.get();
}
