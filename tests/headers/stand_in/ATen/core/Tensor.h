#pragma once

// Every one of the stand-ins names what public headers use, and includes nothing: the real ones
// include most of the standard library, which would hide what a header of ours forgot.

namespace at {

class Tensor {};

}  // namespace at
