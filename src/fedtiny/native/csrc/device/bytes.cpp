#include "bytes.h"

#include <algorithm>

// Floats and whole numbers travel as they lie in memory.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "devices are little-endian");

namespace fedtiny::device {
namespace {

constexpr std::uint64_t START[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                                    0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                                    0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr std::uint8_t ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

std::uint64_t turned(std::uint64_t value, int right) {
  return (value >> right) | (value << (64 - right));
}

}  // namespace

std::string hex(std::uint64_t value, int digits) {
  std::string found;
  for (int i = digits - 1; i >= 0; --i) found += "0123456789abcdef"[value >> (4 * i) & 15];
  return found;
}

std::uint32_t crc32(const void* data, std::size_t size, std::uint32_t before) {
  // by half bytes, so that the table is small
  static constexpr std::uint32_t TABLE[16] = {
      0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
      0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
      0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
  std::uint32_t found = ~before;
  for (const auto *at = static_cast<const std::uint8_t*>(data), *end = at + size; at < end; ++at) {
    found ^= *at;
    found = (found >> 4) ^ TABLE[found & 15];
    found = (found >> 4) ^ TABLE[found & 15];
  }
  return ~found;
}

Blake2b::Blake2b(std::size_t digest_bytes, const void* key, std::size_t key_bytes)
    : digest_bytes_(digest_bytes) {
  std::copy(START, START + 8, state_);
  state_[0] ^= 0x01010000 ^ (key_bytes << 8) ^ digest_bytes;
  if (key_bytes > 0) {
    std::memcpy(block_, key, key_bytes);
    filled_ = sizeof block_;
  }
}

void Blake2b::update(const void* data, std::size_t size) {
  const auto* from = static_cast<const std::uint8_t*>(data);
  while (size > 0) {
    if (filled_ == sizeof block_) compress(false);  // the last block waits for its end
    const std::size_t part = std::min(size, sizeof block_ - filled_);
    std::memcpy(block_ + filled_, from, part);
    filled_ += part;
    from += part;
    size -= part;
  }
}

std::uint64_t Blake2b::digest() {
  std::memset(block_ + filled_, 0, sizeof block_ - filled_);
  compress(true);
  const std::uint64_t all = ~std::uint64_t{0};
  return state_[0] & (all >> (64 - 8 * digest_bytes_));
}

void Blake2b::compress(bool last) {
  count_ += filled_;
  filled_ = 0;
  std::uint64_t m[16], v[16];
  std::memcpy(m, block_, sizeof block_);
  std::copy(state_, state_ + 8, v);
  std::copy(START, START + 8, v + 8);
  v[12] ^= count_;
  if (last) v[14] = ~v[14];
  const auto mix = [&](int a, int b, int c, int d, std::uint64_t x, std::uint64_t y) {
    v[a] += v[b] + x;
    v[d] = turned(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = turned(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 63);
  };
  for (int round = 0; round < 12; ++round) {
    const std::uint8_t* s = ORDER[round % 10];
    for (int i = 0; i < 4; ++i) mix(i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
    for (int i = 0; i < 4; ++i)
      mix(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
  }
  for (int i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
}

}  // namespace fedtiny::device
