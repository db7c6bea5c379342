// Sorted positions in a layer as few bytes: everything, a bitmap, or gaps in Rice's code
// (wire/indices.py).
#include <algorithm>

#include "model.h"

namespace fedtiny::device {
namespace {

constexpr int FULL = 0, BITMAP = 1, RICE = 2, MAX_LOW_BITS = 30;
constexpr std::int64_t RICE_HEAD = 8;

std::int64_t bytes_for(std::int64_t bits) { return (bits + 7) / 8; }

std::int64_t gap(const std::vector<std::int32_t>& places, std::size_t i) {
  return places[i] - (i > 0 ? places[i - 1] : -1) - 1;
}

int guessed_low_bits(const std::vector<std::int32_t>& places) {
  const auto count = static_cast<std::int64_t>(places.size());
  const std::int64_t sum = places.empty() ? 0 : places.back() - (count - 1);
  const double mean = places.empty() ? 0 : static_cast<double>(sum) / static_cast<double>(count);
  auto whole = static_cast<std::int64_t>(std::max(1.0, 0.7 * mean));
  int bits = 0;
  while (whole >>= 1) ++bits;
  return bits;
}

std::int64_t rice_size(const std::vector<std::int32_t>& places, int low_bits) {
  auto unary = static_cast<std::int64_t>(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) unary += gap(places, i) >> low_bits;
  const std::int64_t plane = bytes_for(static_cast<std::int64_t>(places.size()));
  return 1 + RICE_HEAD + low_bits * plane + bytes_for(unary);
}

int smallest_form(const std::vector<std::int32_t>& places, std::int64_t size) {
  std::int64_t least = 1 + bytes_for(size);
  int form = BITMAP;
  const int guess = guessed_low_bits(places);
  for (int k = std::max(0, guess - 1); k <= std::min(MAX_LOW_BITS, guess + 1); ++k) {
    const std::int64_t found = rice_size(places, k);
    if (found < least) {
      least = found;
      form = RICE + k;
    }
  }
  return form;
}

// Room for so many bits at the end of what is written, all zero.
class Bits {
 public:
  Bits(Writer& out, std::int64_t bits) : out_(out), start_(out.bytes.size()) {
    out.bytes.resize(start_ + static_cast<std::size_t>(bytes_for(bits)));
  }
  void set(std::int64_t bit) {
    out_.bytes[start_ + static_cast<std::size_t>(bit / 8)] |=
        static_cast<std::uint8_t>(1u << (bit % 8));
  }

 private:
  Writer& out_;
  std::size_t start_;
};

void write_rice(Writer& out, const std::vector<std::int32_t>& places, int low_bits) {
  const auto count = static_cast<std::int64_t>(places.size());
  std::int64_t unary = count;
  for (std::size_t i = 0; i < places.size(); ++i) unary += gap(places, i) >> low_bits;
  out.number(static_cast<std::uint32_t>(count));
  out.number(static_cast<std::uint32_t>(bytes_for(unary)));
  Bits ends(out, unary);
  std::int64_t end = -1;
  for (std::size_t i = 0; i < places.size(); ++i) ends.set(end += (gap(places, i) >> low_bits) + 1);
  for (int bit = 0; bit < low_bits; ++bit) {
    Bits plane(out, count);
    for (std::size_t i = 0; i < places.size(); ++i)
      if ((gap(places, i) >> bit & 1) != 0) plane.set(static_cast<std::int64_t>(i));
  }
}

bool bit_at(const std::uint8_t* bits, std::int64_t place) {
  return (bits[place / 8] >> (place % 8) & 1) != 0;
}

// Bits of which those that fill the last byte must be zero.
const std::uint8_t* take_bits(Reader& in, std::int64_t bits, const char* what) {
  const std::int64_t bytes = bytes_for(bits);
  const std::uint8_t* found = in.take(static_cast<std::uint64_t>(bytes), what);
  if (bits % 8 != 0 && found[bytes - 1] >> (bits % 8) != 0)
    refuse(std::string("bits are set behind the end of ") + what);
  return found;
}

std::int64_t count_bits(const std::uint8_t* bits, std::int64_t bytes) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < bytes; ++i)
    found += __builtin_popcount(static_cast<unsigned>(bits[i]));
  return found;
}

Positions read_bitmap(Reader& in, std::int64_t size) {
  const std::uint8_t* bits = take_bits(in, size, "a bitmap");
  Positions found;
  found.places.reserve(static_cast<std::size_t>(count_bits(bits, bytes_for(size))));
  for (std::int64_t i = 0; i < size; ++i)
    if (bit_at(bits, i)) found.places.push_back(static_cast<std::int32_t>(i));
  return found;
}

Positions read_rice(Reader& in, std::int64_t size, int low_bits) {
  const std::int64_t count = in.number<std::uint32_t>("the length of a layer");
  const std::int64_t bytes = in.number<std::uint32_t>("the length of a layer");
  if (count > size || bytes > bytes_for(count + (size >> low_bits)))
    refuse("a layer of " + std::to_string(size) + " weights claims " + std::to_string(count) +
           " positions in " + std::to_string(bytes) + " bytes");
  const std::uint8_t* unary = take_bits(in, 8 * bytes, "the positions of a layer");
  if (count_bits(unary, bytes) != count)
    refuse("a layer does not have the " + std::to_string(count) + " positions it claims");
  const std::uint8_t* planes[MAX_LOW_BITS] = {};
  for (int bit = 0; bit < low_bits; ++bit)
    planes[bit] = take_bits(in, count, "the positions of a layer");
  Positions found;
  found.places.reserve(static_cast<std::size_t>(count));
  std::int64_t low = 0;
  for (std::int64_t at = 0, i = 0; i < count; ++at) {
    if (!bit_at(unary, at)) continue;
    for (int bit = 0; bit < low_bits; ++bit)
      low += static_cast<std::int64_t>(bit_at(planes[bit], i)) << bit;
    const std::int64_t place = ((at - i) << low_bits) + low + i;
    if (place >= size)
      refuse("a position lies behind the end of a layer of " + std::to_string(size) + " weights");
    found.places.push_back(static_cast<std::int32_t>(place));
    ++i;
  }
  return found;
}

}  // namespace

void write_positions(Writer& out, const Positions& positions, std::int64_t size) {
  if (positions.count(size) == size) return out.number(static_cast<std::uint8_t>(FULL));
  const int form = smallest_form(positions.places, size);
  out.number(static_cast<std::uint8_t>(form));
  if (form >= RICE) return write_rice(out, positions.places, form - RICE);
  Bits bits(out, size);
  for (const std::int32_t place : positions.places) bits.set(place);
}

Positions read_positions(Reader& in, std::int64_t size) {
  const int form = in.number<std::uint8_t>("the form of a layer");
  if (form == FULL) return Positions{true, {}};
  if (form == BITMAP) return read_bitmap(in, size);
  if (form - RICE > MAX_LOW_BITS) refuse("a layer has the unknown form " + std::to_string(form));
  return read_rice(in, size, form - RICE);
}

}  // namespace fedtiny::device
