// NumPy's random draws, to the bit: Philox keyed by a SeedSequence, and what a Generator draws.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fedtiny::device {

constexpr std::int64_t SERVER = 2147483647;         // stands for the server as a device
constexpr std::int64_t BEFORE_ROUNDS = 2147483647;  // stands for the time before the first round

class Generator {
 public:
  explicit Generator(const std::vector<std::uint32_t>& entropy);

  std::uint64_t next64();
  std::uint32_t next32();
  // From [0, 1).
  double real() { return static_cast<double>(next64() >> 11) * (1.0 / 9007199254740992.0); }
  // `integers(most + 1)`.
  std::uint64_t up_to(std::uint64_t most);
  // `permutation` of values that lie in an array.
  void shuffle(std::int64_t* values, std::size_t count);
  // `choice(below, size, replace=False)`.
  std::vector<std::int64_t> choice(std::int64_t below, std::int64_t count);

 private:
  std::uint64_t interval(std::uint64_t most);
  void shuffle_by_bounds(std::int64_t* values, std::int64_t count, std::int64_t first);
  void refill();

  std::uint64_t key_[2], counter_[4] = {}, buffer_[4] = {};
  int used_ = 4;
  bool has_half_ = false;
  std::uint32_t half_ = 0;
};

// The draws for one purpose of one device in one round, as of randomness.py.
Generator generator(std::int64_t seed, std::string_view purpose, std::int64_t round,
                    std::int64_t device);

}  // namespace fedtiny::device
