#include "data.h"

#include <cmath>

namespace fedtiny::device {
namespace {

constexpr std::uint32_t MARK = 0x64645446;  // "FTdd"
constexpr std::uint32_t VERSION = 1, NO_DEVICE = 0xffffffff;
constexpr std::size_t NUMBERED = 12;  // bytes of mark, version and number
constexpr std::int64_t MOST = std::int64_t{1} << 26;  // values of an image

std::vector<std::int64_t> read_places(Reader& in, std::int64_t count, std::int64_t below) {
  std::vector<std::int64_t> found;
  in.take(0, "the data file");
  if (static_cast<std::uint64_t>(count) * 4 > in.left()) refuse("the data file is cut off");
  found.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    found.push_back(in.number<std::uint32_t>("the data file"));
    if (found.back() >= below) refuse("the data file names an image that it does not hold");
  }
  return found;
}

}  // namespace

Data::Data(const void* bytes, std::size_t size) {
  const auto* start = static_cast<const std::uint8_t*>(bytes);
  Reader in(start, size < 4 ? 0 : size - 4);
  const auto next = [&in] { return in.number<std::uint32_t>("the data file"); };
  if (size < 52 || next() != MARK || next() != VERSION)
    refuse("this is not a data file of a device; write one with 'fedtiny data devices'");
  if (crc32(start, size - 4) != Reader(start + size - 4, 4).number<std::uint32_t>("a checksum"))
    refuse("the data file was damaged: its checksum does not fit");
  const std::uint32_t number = next();
  Blake2b digested(sizeof digest);
  digested.update(start + NUMBERED, size - NUMBERED - 4);
  digest = digested.digest();
  device = number == NO_DEVICE ? -1 : static_cast<std::int64_t>(number);
  count = next();
  const std::int64_t samples = next(), measured = next();
  channels = next();
  height = next();
  width = next();
  classes = next();
  const std::uint32_t dtype = next();
  if (next() != 0 || dtype > 1 || count < 1 || channels < 1 || height < 1 || width < 1 ||
      channels > MOST || height > MOST / channels || width > MOST / channels / height)
    refuse("the data file has a head that makes no sense");
  is_float = dtype == 1;
  indices = read_places(in, samples, count);
  development = read_places(in, measured, count);
  labels = reinterpret_cast<const std::uint32_t*>(
      in.take(static_cast<std::uint64_t>(count) * 4, "the labels of the data file"));
  images = in.take(static_cast<std::uint64_t>(count * pixels()) * (is_float ? 4 : 1),
                   "the images of the data file");
  for (std::int64_t i = 0; i < count; ++i)
    if (labels[i] >= classes) refuse("the data file has a label that is no class");
}

void Preparation::fit(const Data& data) {
  if (static_cast<std::int64_t>(deviations.size()) != data.channels)
    refuse("the data of this device have " + std::to_string(data.channels) +
           " channels, those of the federation " + std::to_string(deviations.size()));
  const float unit = data.is_float ? 1.0f : 255.0f;
  scale.clear();
  for (const float own : deviations) scale.push_back(1.0f / (unit * own));
}

Draws Preparation::draws(Generator& generator, std::int64_t count) const {
  Draws found;
  const auto most = static_cast<std::uint64_t>(2 * crop_padding);
  if (crop_padding > 0) found.crops.reserve(static_cast<std::size_t>(2 * count));
  for (std::int64_t i = 0; i < 2 * count; ++i) {
    const auto drawn = static_cast<std::int32_t>(generator.up_to(most));
    if (crop_padding > 0) found.crops.push_back(drawn);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const bool mirrored = generator.real() < 0.5;
    if (flips) found.flips.push_back(mirrored);
  }
  for (std::int64_t i = 0; i < 2 * count; ++i) {
    const double drawn = generator.real();
    if (cutout > 0) found.centers.push_back(drawn);
  }
  return found;
}

void Preparation::prepare(const Data& data, std::int64_t image, const Draws* draws,
                          std::int64_t number, float* to) const {
  const std::int64_t height = data.height, width = data.width, plane = height * width;
  const auto n = static_cast<std::size_t>(number);
  const bool moved = draws != nullptr && crop_padding > 0;
  const std::int64_t down = moved ? draws->crops[2 * n] - crop_padding : 0;
  const std::int64_t right = moved ? draws->crops[2 * n + 1] - crop_padding : 0;
  const bool mirrored = draws != nullptr && flips && draws->flips[n];
  const bool cut = draws != nullptr && cutout > 0;
  const auto hole = [&](std::size_t axis, std::int64_t side) {
    return static_cast<std::int64_t>(
               std::floor(draws->centers[2 * n + axis] * static_cast<double>(side))) -
           cutout / 2;
  };
  const std::int64_t top = cut ? hole(0, height) : 0, left = cut ? hole(1, width) : 0;
  for (std::int64_t channel = 0; channel < data.channels; ++channel) {
    const float factor = scale[static_cast<std::size_t>(channel)];
    const float offset = shift[static_cast<std::size_t>(channel)];
    const std::int64_t start = (image * data.channels + channel) * plane;
    for (std::int64_t row = 0; row < height; ++row) {
      for (std::int64_t column = 0; column < width; ++column) {
        const std::int64_t y = row + down, x = (mirrored ? width - 1 - column : column) + right;
        float value = 0;
        if (y >= 0 && y < height && x >= 0 && x < width) {
          const std::int64_t at = start + y * width + x;
          if (data.is_float)
            std::memcpy(&value, data.images + 4 * at, sizeof value);
          else
            value = static_cast<float>(data.images[at]);
        }
        value *= factor;
        value -= offset;
        const bool inside = cut && row >= top && row < top + cutout && column >= left &&
                            column < left + cutout;
        *to++ = inside ? value * 0.0f : value;
      }
    }
  }
}

}  // namespace fedtiny::device
