// Parts of fedtiny-device for tests in Python: the draws of NumPy, coded positions, numbers in JSON.
#include <algorithm>

#include "json.h"
#include "model.h"
#include "random.h"

using namespace fedtiny::device;

namespace {

Generator made(std::int64_t seed, const char* purpose, std::int64_t round, std::int64_t device) {
  return generator(seed, purpose, round, device);
}

}  // namespace

extern "C" {

void shuffled(std::int64_t seed, const char* purpose, std::int64_t round, std::int64_t device,
              std::int64_t* values, std::int64_t count) {
  made(seed, purpose, round, device).shuffle(values, static_cast<std::size_t>(count));
}

// `choice`, then as many `integers` and `random`, and one `integers(2**63)`.
void drawn(std::int64_t seed, std::int64_t below, std::int64_t count, std::int64_t bound,
           std::int64_t* chosen, std::int64_t* wholes, double* reals, std::uint64_t* last) {
  Generator draw = made(seed, "gradient batch", 3, 1);
  const std::vector<std::int64_t> found = draw.choice(below, count);
  std::copy(found.begin(), found.end(), chosen);
  for (std::int64_t i = 0; i < count; ++i)
    wholes[i] = static_cast<std::int64_t>(draw.up_to(static_cast<std::uint64_t>(bound - 1)));
  for (std::int64_t i = 0; i < count; ++i) reals[i] = draw.real();
  *last = draw.up_to((std::uint64_t{1} << 63) - 1);
}

std::int64_t coded(const std::int32_t* places, std::int64_t count, std::int64_t size,
                   std::uint8_t* to) {
  Writer out;
  write_positions(out, Positions{count == size, {places, places + count}}, size);
  std::copy(out.bytes.begin(), out.bytes.end(), to);
  return static_cast<std::int64_t>(out.bytes.size());
}

// The number of positions, -1 if the code is refused or not all of it was read.
std::int64_t decoded(const std::uint8_t* code, std::int64_t bytes, std::int64_t size,
                     std::int32_t* to) {
  try {
    Reader in(code, static_cast<std::size_t>(bytes));
    const Positions found = read_positions(in, size);
    in.finish();
    for (std::int64_t i = 0; i < found.count(size); ++i)
      to[i] = static_cast<std::int32_t>(found.at(i));
    return found.count(size);
  } catch (const Failure&) {
    return -1;
  }
}

void number_text(double value, char* to) {
  const std::string text = json_number(value);
  std::copy(text.begin(), text.end() + 1, to);
}

// A JSON text as it was understood: kinds and values, in order.
std::int64_t understood(char* text, std::int64_t size, char* to, std::int64_t room) {
  try {
    const Json json(text, static_cast<std::size_t>(size));
    std::string found;
    const auto tell = [&](const auto& self, const JsonView& value) -> void {
      if (value.is(JsonKind::null)) found += "null";
      else if (value.is(JsonKind::boolean)) found += value.flag("") ? "true" : "false";
      else if (value.is(JsonKind::whole)) found += std::to_string(value.whole(""));
      else if (value.is(JsonKind::number)) found += json_number(value.number(""));
      else if (value.is(JsonKind::text)) found += "<" + std::string(value.text("")) + ">";
      else {
        found += value.is(JsonKind::list) ? "[" : "{";
        for (const JsonView& item : value.items("")) {
          if (value.is(JsonKind::object)) found += "<" + std::string(item.key()) + ">";
          self(self, item);
          found += ",";
        }
        found += "]";
      }
    };
    tell(tell, json.root());
    if (static_cast<std::int64_t>(found.size()) > room) return -2;
    std::copy(found.begin(), found.end(), to);
    return static_cast<std::int64_t>(found.size());
  } catch (const Failure&) {
    return -1;
  }
}

}  // extern "C"
