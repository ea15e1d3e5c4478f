#include "hydra/core/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

#include "hydra/core/check.h"

namespace hydra {
namespace {

/// Throws and catches as callers do: by the base class.
template <typename Thrown>
void expect_error(const Thrown& thrown, ErrorCode code, ErrorSource source, bool retryable) {
  try {
    throw thrown;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.source(), source);
    EXPECT_EQ(error.retryable(), retryable);
    EXPECT_STREQ(error.what(), thrown.what());
  }
}

TEST(SystemMessageTest, SaysTheSystemsWordsForAnErrno) {
  EXPECT_EQ(system_message(ENOSPC), "No space left on device");
  EXPECT_NE(system_message(-1).find("-1"), std::string::npos);
}

TEST(ErrorTest, EveryTypeCarriesItsCodeItsSourceAndWhetherToTryAgain) {
  expect_error(InvalidArgument("m"), ErrorCode::kInvalidArgument, ErrorSource::kUser, false);
  expect_error(Unsupported("m"), ErrorCode::kUnsupported, ErrorSource::kUser, false);
  expect_error(DoesNotFit("m"), ErrorCode::kDoesNotFit, ErrorSource::kUser, false);
  expect_error(OutOfDeviceMemory("cpu0", Bytes(1), Bytes(2), Bytes(3)),
               ErrorCode::kOutOfDeviceMemory, ErrorSource::kDevice, true);
  expect_error(OutOfHostMemory("m"), ErrorCode::kOutOfHostMemory, ErrorSource::kUser, true);
  expect_error(NonFinite("m"), ErrorCode::kNonFinite, ErrorSource::kUser, false);
  expect_error(DataError("m"), ErrorCode::kData, ErrorSource::kUser, false);
  expect_error(LayerError("m"), ErrorCode::kLayer, ErrorSource::kUser, false);
  expect_error(CallbackError("m"), ErrorCode::kCallback, ErrorSource::kUser, false);
  expect_error(DeviceError(true, "m"), ErrorCode::kDevice, ErrorSource::kDevice, true);
  expect_error(StorageError(true, "m"), ErrorCode::kStorage, ErrorSource::kSystem, true);
  expect_error(CorruptionError("m"), ErrorCode::kCorruption, ErrorSource::kSystem, false);
  expect_error(DeviceError(false, "m"), ErrorCode::kDevice, ErrorSource::kDevice, false);
  expect_error(Cancelled("m"), ErrorCode::kCancelled, ErrorSource::kUser, false);
  expect_error(SystemError("m"), ErrorCode::kSystem, ErrorSource::kSystem, false);
  expect_error(InternalError("m"), ErrorCode::kInternal, ErrorSource::kLibrary, false);
}

TEST(ErrorTest, EveryCodeHasASpellingOfItsOwn) {
  std::set<std::string> spellings;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    spellings.insert(to_string(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(spellings.size(), static_cast<std::size_t>(ErrorCode::kInternal) + 1);
  EXPECT_FALSE(spellings.contains("unknown"));
  EXPECT_STREQ(to_string(ErrorCode::kOutOfDeviceMemory), "out_of_device_memory");
}

TEST(ErrorTest, OutOfDeviceMemoryCarriesItsNumbers) {
  const OutOfDeviceMemory error("cpu0", Bytes(1), Bytes(2), Bytes(3));
  EXPECT_EQ(error.requested(), Bytes(1));
  EXPECT_EQ(error.in_use(), Bytes(2));
  EXPECT_EQ(error.budget(), Bytes(3));
}

TEST(CheckTest, AFailedCheckNamesThePlaceTheConditionAndTheMessage) {
  try {
    HYDRA_CHECK(1 > 2, "numbers are odd");
    FAIL() << "nothing was thrown";
  } catch (const InternalError& error) {
    const std::string message = error.what();
    for (const char* part : {"error_test.cpp:", "1 > 2", "numbers are odd"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

TEST(CheckTest, AFailedEqualityShowsBothValues) {
  try {
    HYDRA_CHECK_EQ(40 + 2, 43);
    FAIL() << "nothing was thrown";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("42 against 43"), std::string::npos) << error.what();
  }
}

TEST(CheckTest, ACheckThatHoldsEvaluatesItsConditionOnceAndDoesNotThrow) {
  int evaluated = 0;
  HYDRA_CHECK(++evaluated == 1, "evaluated more than once");
  EXPECT_EQ(evaluated, 1);
}

}  // namespace
}  // namespace hydra
