// Requests and replies in the wire format (federation/wire).
#pragma once
#include <map>
#include <optional>

#include "json.h"
#include "model.h"

namespace fedtiny::device {

constexpr int FORMAT_VERSION = 3;
constexpr std::size_t MAX_TEXT = 1u << 18;

enum class Dtype : std::uint8_t { float32, float64, int32, int64, uint8 };

struct Array {
  std::string name;
  Dtype dtype = Dtype::float32;
  std::vector<std::int64_t> shape;
  Bytes data;

  std::int64_t size() const;
  const float* floats() const;  // refused if it has others
  const std::int32_t* wholes() const;
};

// What a receiver holds of what it was sent last.
struct Held {
  std::shared_ptr<const Theta> theta;
};

struct Request {
  std::int64_t round = 0;
  std::uint64_t id = 0;
  std::vector<char> text;  // that the program points into
  std::unique_ptr<Json> order;
  std::string method;
  std::shared_ptr<const Theta> theta;
  std::vector<Array> arrays;

  JsonView program() const { return order->root().at(2, "the order"); }
  const Array* find(std::string_view name) const;
};

struct Gradient {
  int layer = 0;
  Positions positions;
  std::vector<float> values;
};

struct Reply {
  std::int64_t device = 0, samples = 0;
  std::optional<Theta> theta;
  std::vector<Gradient> gradients;
  std::vector<Array> arrays;
  std::vector<std::pair<std::string, double>> metrics;

  void add(Array array);  // in place of one of its name
  void add(Gradient gradient);
  void add(const std::string& metric, double value);
};

Array float_array(std::string name, std::vector<std::int64_t> shape, const float* values);

// The request; a Failure that is `missing` where it builds on what is not held.
Request decode_request(const std::uint8_t* data, std::size_t size, const ParamSpec& spec,
                       const Held& held);
// The reply to a request, after what is written already.
void encode_reply(Writer& out, const Reply& reply, const Request& request, const ParamSpec& spec);

}  // namespace fedtiny::device
