#pragma once

namespace c10 {

enum class ScalarType : signed char { Float };

}  // namespace c10
