#include "random.h"

#include <algorithm>

#include "bytes.h"

namespace fedtiny::device {
namespace {

constexpr std::size_t POOL = 4;
constexpr std::uint32_t MIX_LEFT = 0xca01f9dd, MIX_RIGHT = 0x4973f715;

// The hash of NumPy's SeedSequence; its factor changes with each call.
class Hash {
 public:
  Hash(std::uint32_t start, std::uint32_t factor) : constant_(start), factor_(factor) {}

  std::uint32_t operator()(std::uint32_t value) {
    value ^= constant_;
    constant_ *= factor_;
    value *= constant_;
    return value ^ (value >> 16);
  }

 private:
  std::uint32_t constant_, factor_;
};

std::uint32_t mixed(std::uint32_t x, std::uint32_t y) {
  const std::uint32_t found = MIX_LEFT * x - MIX_RIGHT * y;
  return found ^ (found >> 16);
}

// 64-bit products in 128 bits, without a type that 32-bit compilers lack.
std::uint64_t product(std::uint64_t a, std::uint64_t b, std::uint64_t& low) {
  const std::uint64_t a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
  const std::uint64_t first = a0 * b0, cross = a1 * b0 + (first >> 32);
  const std::uint64_t other = a0 * b1 + (cross & 0xffffffff);
  low = other << 32 | (first & 0xffffffff);
  return a1 * b1 + (cross >> 32) + (other >> 32);
}

}  // namespace

Generator::Generator(const std::vector<std::uint32_t>& entropy) {
  std::uint32_t pool[POOL];
  Hash hash(0x43b0d7e5, 0x931e8875);
  for (std::size_t i = 0; i < POOL; ++i) pool[i] = hash(i < entropy.size() ? entropy[i] : 0);
  for (std::size_t from = 0; from < POOL; ++from)
    for (std::size_t to = 0; to < POOL; ++to)
      if (from != to) pool[to] = mixed(pool[to], hash(pool[from]));
  for (std::size_t from = POOL; from < entropy.size(); ++from)
    for (std::uint32_t& to : pool) to = mixed(to, hash(entropy[from]));
  Hash out(0x8b51f9dd, 0x58f38ded);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::uint64_t low = out(pool[2 * i]);
    key_[i] = low | static_cast<std::uint64_t>(out(pool[2 * i + 1])) << 32;
  }
}

void Generator::refill() {
  for (std::uint64_t& word : counter_)
    if (++word != 0) break;
  std::uint64_t c[4], k0 = key_[0], k1 = key_[1];
  std::copy(counter_, counter_ + 4, c);
  for (int round = 0; round < 10; ++round) {
    std::uint64_t low0 = 0, low1 = 0;
    const std::uint64_t high0 = product(0xD2E7470EE14C6C93, c[0], low0);
    const std::uint64_t high1 = product(0xCA5A826395121157, c[2], low1);
    c[0] = high1 ^ c[1] ^ k0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ k1;
    c[3] = low0;
    k0 += 0x9E3779B97F4A7C15;
    k1 += 0xBB67AE8584CAA73B;
  }
  std::copy(c, c + 4, buffer_);
  used_ = 0;
}

std::uint64_t Generator::next64() {
  if (used_ == 4) refill();
  return buffer_[used_++];
}

std::uint32_t Generator::next32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const std::uint64_t both = next64();
  has_half_ = true;
  half_ = static_cast<std::uint32_t>(both >> 32);
  return static_cast<std::uint32_t>(both);
}

// Lemire's way, in 32 bits where that is enough.
std::uint64_t Generator::up_to(std::uint64_t most) {
  if (most == 0) return 0;
  if (most == 0xffffffff) return next32();
  if (most < 0xffffffff) {
    const auto range = static_cast<std::uint32_t>(most) + 1;
    const std::uint32_t threshold = (0xffffffff - static_cast<std::uint32_t>(most)) % range;
    std::uint64_t found = static_cast<std::uint64_t>(next32()) * range;
    while (static_cast<std::uint32_t>(found) < threshold)
      found = static_cast<std::uint64_t>(next32()) * range;
    return found >> 32;
  }
  if (most == ~std::uint64_t{0}) return next64();
  const std::uint64_t range = most + 1, threshold = (~std::uint64_t{0} - most) % range;
  std::uint64_t low = 0, high = product(next64(), range, low);
  while (low < threshold) high = product(next64(), range, low);
  return high;
}

// By masks, as NumPy shuffles.
std::uint64_t Generator::interval(std::uint64_t most) {
  std::uint64_t mask = most, found = 0;
  for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
  do {
    found = (most <= 0xffffffff ? next32() : next64()) & mask;
  } while (found > most);
  return found;
}

void Generator::shuffle(std::int64_t* values, std::size_t count) {
  for (std::size_t i = count; i-- > 1;)
    std::swap(values[i], values[static_cast<std::size_t>(interval(i))]);
}

void Generator::shuffle_by_bounds(std::int64_t* values, std::int64_t count, std::int64_t first) {
  for (std::int64_t i = count - 1; i >= first; --i)
    std::swap(values[i], values[up_to(static_cast<std::uint64_t>(i))]);
}

std::vector<std::int64_t> Generator::choice(std::int64_t below, std::int64_t count) {
  std::vector<std::int64_t> found;
  if (below > 10000 && count > below / 50) {  // the end of a shuffled list
    found.resize(static_cast<std::size_t>(below));
    for (std::int64_t i = 0; i < below; ++i) found[static_cast<std::size_t>(i)] = i;
    shuffle_by_bounds(found.data(), below, std::max<std::int64_t>(below - count, 1));
    return {found.data() + (below - count), found.data() + below};
  }
  std::vector<std::int64_t> sorted;  // Floyd's way
  for (std::int64_t j = below - count; j < below; ++j) {
    auto drawn = static_cast<std::int64_t>(up_to(static_cast<std::uint64_t>(j)));
    auto place = std::lower_bound(sorted.begin(), sorted.end(), drawn);
    if (place != sorted.end() && *place == drawn) {
      drawn = j;
      place = sorted.end();
    }
    sorted.insert(place, drawn);
    found.push_back(drawn);
  }
  shuffle_by_bounds(found.data(), count, 1);
  return found;
}

Generator generator(std::int64_t seed, std::string_view purpose, std::int64_t round,
                    std::int64_t device) {
  std::vector<std::uint32_t> entropy;
  for (const std::int64_t number : {seed, round, device}) {
    entropy.push_back(static_cast<std::uint32_t>(number));
    if (number >> 32 != 0) entropy.push_back(static_cast<std::uint32_t>(number >> 32));
  }
  entropy.push_back(crc32(purpose.data(), purpose.size()));
  return Generator(entropy);
}

}  // namespace fedtiny::device
