#pragma once

namespace at {

class Generator {};

}  // namespace at
