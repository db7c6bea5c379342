// Bytes of a message, from front to back: all that is read is checked.
#pragma once
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fedtiny::device {

using Bytes = std::vector<std::uint8_t>;

// What a device answers with one sentence; `missing` if it does not hold what a request builds on.
struct Failure : std::exception {
  explicit Failure(std::string sentence, bool is_missing = false)
      : text(std::move(sentence)), missing(is_missing) {}
  const char* what() const noexcept override { return text.c_str(); }

  std::string text;
  bool missing;
};

[[noreturn]] inline void refuse(std::string sentence) { throw Failure(std::move(sentence)); }

class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  const std::uint8_t* take(std::uint64_t count, const char* what) {
    if (count > left())
      refuse(std::string("the message ends inside ") + what + ": needs " + std::to_string(count) +
             " bytes, has " + std::to_string(left()));
    const std::uint8_t* found = at_;
    at_ += count;
    return found;
  }

  template <class T>
  T number(const char* what) {
    const std::uint8_t* bytes = take(sizeof(T), what);
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(bytes[i]) << (8 * i)));
    return value;
  }

  std::string_view text(std::uint64_t count, const char* what) {
    return {reinterpret_cast<const char*>(take(count, what)), static_cast<std::size_t>(count)};
  }

  void finish() const {
    if (left() != 0) refuse(std::to_string(left()) + " bytes follow the end of the message");
  }

 private:
  const std::uint8_t *at_, *end_;
};

class Writer {
 public:
  template <class T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bytes.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> (8 * i)));
  }

  void raw(const void* data, std::size_t size) {
    const auto* from = static_cast<const std::uint8_t*>(data);
    bytes.insert(bytes.end(), from, from + size);
  }

  void text(std::string_view value) { raw(value.data(), value.size()); }

  void floats(const float* values, std::size_t count) { raw(values, count * sizeof(float)); }

  Bytes bytes;
};

std::string hex(std::uint64_t value, int digits);

// That of zlib.
std::uint32_t crc32(const void* data, std::size_t size, std::uint32_t before = 0);

// BLAKE2b with a digest of at most eight bytes, as a number.
class Blake2b {
 public:
  explicit Blake2b(std::size_t digest_bytes, const void* key = nullptr, std::size_t key_bytes = 0);
  void update(const void* data, std::size_t size);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::uint64_t digest();

 private:
  void compress(bool last);

  std::uint64_t state_[8];
  std::uint8_t block_[128] = {};
  std::size_t filled_ = 0, digest_bytes_;
  std::uint64_t count_ = 0;
};

}  // namespace fedtiny::device
