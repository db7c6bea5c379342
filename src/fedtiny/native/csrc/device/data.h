// The images of a device, where they lie, and how they become batches.
#pragma once
#include "bytes.h"
#include "random.h"

namespace fedtiny::device {

// A data file (docs/device_program.md) in memory or flash; nothing is copied but the lists.
class Data {
 public:
  Data(const void* bytes, std::size_t size);

  std::int64_t pixels() const { return channels * height * width; }

  std::int64_t device = -1;  // -1 if it has no number
  std::int64_t count = 0, channels = 0, height = 0, width = 0, classes = 0;
  bool is_float = false;
  std::uint64_t digest = 0;  // of what follows the number
  std::vector<std::int64_t> indices, development;
  const std::uint32_t* labels = nullptr;
  const std::uint8_t* images = nullptr;
};

// The random numbers of samples, in the order in which they were drawn for.
struct Draws {
  std::vector<std::int32_t> crops;  // row and column of each
  std::vector<bool> flips;
  std::vector<double> centers;  // of what is cut out, if anything is
};

// data/transforms.py
struct Preparation {
  std::vector<float> deviations, shift;  // of each channel; the shift is mean / std
  std::vector<float> scale;       // once it is known what the data's unit is
  std::int64_t crop_padding = 0, cutout = 0;
  bool flips = false;

  void fit(const Data& data);
  Draws draws(Generator& generator, std::int64_t count) const;
  // An image as a network sees it; with draws it is augmented by those of a number.
  void prepare(const Data& data, std::int64_t image, const Draws* draws, std::int64_t number,
               float* to) const;
};

}  // namespace fedtiny::device
