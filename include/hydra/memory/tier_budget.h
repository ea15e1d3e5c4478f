#pragma once

#include <memory>
#include <optional>
#include <string>

#include "hydra/core/bytes.h"

namespace hydra {

class TierBudget;

/// A scoped right to a number of bytes of one tier; gives them back when it dies.
///
/// Move-only. Lifetime: may outlive the TierBudget object that made it (shared state).
/// Thread safety: thread-compatible; release on any thread.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { release(); }

  Bytes bytes() const noexcept { return bytes_; }
  /// Gives all bytes back now.
  void release() noexcept;
  /// Cuts `part` bytes off into a reservation of their own. Errors: InternalError if fewer are
  /// held.
  Reservation split(Bytes part);
  /// Takes over the bytes of `other`, which must be of the same budget.
  void merge(Reservation&& other);

 private:
  friend class TierBudget;
  struct State;
  std::shared_ptr<State> state_;
  Bytes bytes_;
};

/// The bytes of one tier, granted at most once each.
///
/// Expected outcomes are values: a refused reservation is an empty optional.
/// Thread safety: thread-safe. Blocks: never.
class TierBudget {
 public:
  TierBudget(std::string name, Bytes capacity);

  std::optional<Reservation> try_reserve(Bytes bytes);

  const std::string& name() const noexcept;
  Bytes capacity() const noexcept;
  Bytes reserved() const noexcept;
  Bytes available() const noexcept;
  /// The largest value that `reserved()` ever had.
  Bytes peak() const noexcept;

 private:
  std::shared_ptr<Reservation::State> state_;
};

}  // namespace hydra
