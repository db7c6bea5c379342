#include "messages.h"

#include <algorithm>

namespace fedtiny::device {
namespace {

constexpr std::uint32_t MAGIC = 0x594e5446;  // "FTNY"
constexpr int REQUEST = 1, REPLY = 2;
constexpr int NO_THETA = 0, SAME_THETA = 1, VALUES = 2, MASK_AND_VALUES = 3;
constexpr std::uint16_t VOTES = 0x8000;
constexpr int MAX_DIMENSIONS = 8;
constexpr std::int64_t MAX_ELEMENTS = std::int64_t{1} << 40;
constexpr std::size_t ITEM_BYTES[] = {4, 8, 4, 8, 1};

// Names can be shown to people as they are.
std::string checked_name(std::string_view name) {
  const auto shown = [](char sign) { return sign >= ' ' && sign < 127; };
  const bool plain = std::all_of(name.begin(), name.end(), shown);
  if (name.empty() || name.size() > 255 || !plain)
    refuse("a name needs 1 to 255 printable signs");
  return std::string(name);
}

Reader opened(const std::uint8_t* data, std::size_t size, const ParamSpec& spec) {
  const std::size_t content = size < 4 ? 0 : size - 4;
  Reader in(data, content);
  const auto magic = in.number<std::uint32_t>("its head");
  const int version = in.number<std::uint8_t>("its head");
  const int kind = in.number<std::uint8_t>("its head");
  const auto fingerprint = in.number<std::uint32_t>("its head");
  if (magic != MAGIC) refuse("these bytes are not a fedtiny message");
  if (version != FORMAT_VERSION)
    refuse("the message has format " + std::to_string(version) + "; this device speaks " +
           std::to_string(FORMAT_VERSION) + ": install the same fedtiny on both sides");
  if (crc32(data, content) != Reader(data + content, 4).number<std::uint32_t>("its checksum"))
    refuse("the message was damaged on its way: its checksum does not fit");
  if (kind != REQUEST) refuse("expected a request, got kind " + std::to_string(kind));
  if (fingerprint != spec.fingerprint)
    refuse("the message is for model " + hex(fingerprint, 8) + ", not " + hex(spec.fingerprint, 8));
  return in;
}

void read_order(Reader& in, Request& request) {
  const auto length = in.number<std::uint32_t>("its text");
  if (length > MAX_TEXT)
    refuse("the message claims " + std::to_string(length) + " bytes of text; " +
           std::to_string(MAX_TEXT) + " are allowed");
  const std::string_view text = in.text(length, "its text");
  request.text.assign(text.begin(), text.end());
  request.order = std::make_unique<Json>(request.text.data(), request.text.size());
  const std::vector<JsonView> parts = request.order->root().items("the order of a request");
  if (parts.size() != 3 || !parts[2].is(JsonKind::list))
    refuse("a request needs an action, a method and a program");
  checked_name(parts[0].text("an action"));
  request.method = checked_name(parts[1].text("a method"));
}

std::shared_ptr<const Mask> read_mask(Reader& in, const ParamSpec& spec, std::uint64_t version) {
  std::vector<Positions> layers;
  for (const Tensor& layer : spec.prunable) layers.push_back(read_positions(in, layer.size));
  auto mask = std::make_shared<const Mask>(spec, std::move(layers));
  if (mask->version != version)
    refuse("the mask is not the " + hex(version, 16) + " it claims to be");
  return mask;
}

std::shared_ptr<const Theta> read_theta(Reader& in, const ParamSpec& spec, const Held& held) {
  const int form = in.number<std::uint8_t>("the form of theta");
  if (form == NO_THETA) refuse("a request needs a theta");
  if (form > MASK_AND_VALUES) refuse("theta has the unknown form " + std::to_string(form));
  const auto version = in.number<std::uint64_t>("the mask version");
  const bool same_mask = held.theta && held.theta->mask->version == version;
  if (form == SAME_THETA) {
    const auto own = in.number<std::uint64_t>("the version of theta");
    if (!same_mask || held.theta->version() != own)
      throw Failure("the message needs theta " + hex(own, 16) + ", which is not held here", true);
    return held.theta;
  }
  if (form == VALUES && !same_mask)
    throw Failure("the message needs mask " + hex(version, 16) + ", which is not held here", true);
  auto theta = std::make_shared<Theta>();
  theta->mask = form == VALUES ? held.theta->mask : read_mask(in, spec, version);
  const auto bytes =
      static_cast<std::uint64_t>(theta->mask->count + spec.dense_count) * sizeof(float);
  const std::uint8_t* values = in.take(bytes, "the values of theta");
  theta->values.resize(static_cast<std::size_t>(bytes) / sizeof(float));
  if (bytes > 0) std::memcpy(theta->values.data(), values, static_cast<std::size_t>(bytes));
  return theta;
}

Array read_array(Reader& in) {
  Array array;
  array.name = checked_name(in.text(in.number<std::uint8_t>("a name"), "a name"));
  const int code = in.number<std::uint8_t>("an array");
  const int dimensions = in.number<std::uint8_t>("an array");
  if (code > static_cast<int>(Dtype::uint8) || dimensions > MAX_DIMENSIONS)
    refuse("the array " + array.name + " has dtype " + std::to_string(code) + " and " +
           std::to_string(dimensions) + " dimensions");
  array.dtype = static_cast<Dtype>(code);
  std::int64_t most = 1;
  for (int i = 0; i < dimensions; ++i) {
    array.shape.push_back(in.number<std::uint32_t>("the shape of an array"));
    if (__builtin_mul_overflow(most, std::max<std::int64_t>(1, array.shape.back()), &most) ||
        most > MAX_ELEMENTS)
      refuse("the array " + array.name + " is too large");
  }
  const std::uint64_t bytes = static_cast<std::uint64_t>(array.size()) * ITEM_BYTES[code];
  const std::uint8_t* data = in.take(bytes, "an array");
  array.data.assign(data, data + bytes);
  return array;
}

template <class T, class Same>
void put(std::vector<T>& all, T&& item, Same same) {
  const auto place = std::find_if(all.begin(), all.end(), same);
  if (place == all.end())
    all.push_back(std::forward<T>(item));
  else
    *place = std::forward<T>(item);
}

void write_metrics(Writer& out, const Reply& reply) {
  std::string text = "{";
  for (const auto& [name, value] : reply.metrics)
    text += (text.size() > 1 ? ",\"" : "\"") + name + "\":" + json_number(value);
  text += "}";
  out.number(static_cast<std::uint32_t>(text.size()));
  out.text(text);
}

void write_theta(Writer& out, const Reply& reply, const Request& request, const ParamSpec& spec) {
  if (!reply.theta) return out.number(static_cast<std::uint8_t>(NO_THETA));
  const Mask& mask = *reply.theta->mask;
  const bool same = mask.version == request.theta->mask->version;
  out.number(static_cast<std::uint8_t>(same ? VALUES : MASK_AND_VALUES));
  out.number(mask.version);
  if (!same)
    for (std::size_t i = 0; i < mask.layers.size(); ++i)
      write_positions(out, mask.layers[i], spec.prunable[i].size);
  out.floats(reply.theta->values.data(), reply.theta->values.size());
}

void write_gradients(Writer& out, const Reply& reply, const ParamSpec& spec) {
  out.number(static_cast<std::uint16_t>(reply.gradients.size()));
  for (const Gradient& own : reply.gradients) {
    const auto& values = own.values;
    const auto is_one = [](float value) { return value == 1; };
    const bool votes = !values.empty() && std::all_of(values.begin(), values.end(), is_one);
    out.number(static_cast<std::uint16_t>(own.layer + (votes ? VOTES : 0)));
    write_positions(out, own.positions, spec.prunable[static_cast<std::size_t>(own.layer)].size);
    if (!votes) out.floats(values.data(), values.size());
  }
}

void write_arrays(Writer& out, const Reply& reply) {
  out.number(static_cast<std::uint16_t>(reply.arrays.size()));
  for (const Array& array : reply.arrays) {
    out.number(static_cast<std::uint8_t>(array.name.size()));
    out.text(array.name);
    out.number(static_cast<std::uint8_t>(array.dtype));
    out.number(static_cast<std::uint8_t>(array.shape.size()));
    for (const std::int64_t side : array.shape) out.number(static_cast<std::uint32_t>(side));
    out.raw(array.data.data(), array.data.size());
  }
}

}  // namespace

std::int64_t Array::size() const {
  std::int64_t found = 1;
  for (const std::int64_t side : shape) found *= side;
  return found;
}

const float* Array::floats() const {
  if (dtype != Dtype::float32) refuse("the array " + name + " must hold float32 values");
  return reinterpret_cast<const float*>(data.data());
}

const std::int32_t* Array::wholes() const {
  if (dtype != Dtype::int32) refuse("the array " + name + " must hold int32 values");
  return reinterpret_cast<const std::int32_t*>(data.data());
}

Array float_array(std::string name, std::vector<std::int64_t> shape, const float* values) {
  Array array{std::move(name), Dtype::float32, std::move(shape), {}};
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(values);
  array.data.assign(bytes, bytes + static_cast<std::size_t>(array.size()) * sizeof(float));
  return array;
}

const Array* Request::find(std::string_view name) const {
  for (const Array& array : arrays)
    if (array.name == name) return &array;
  return nullptr;
}

void Reply::add(Array array) {
  const std::string name = array.name;
  put(arrays, std::move(array), [&](const Array& other) { return other.name == name; });
}

void Reply::add(Gradient gradient) {
  const int layer = gradient.layer;
  put(gradients, std::move(gradient), [&](const Gradient& other) { return other.layer == layer; });
}

void Reply::add(const std::string& metric, double value) {
  put(metrics, std::pair(metric, value), [&](const auto& other) { return other.first == metric; });
}

Request decode_request(const std::uint8_t* data, std::size_t size, const ParamSpec& spec,
                       const Held& held) {
  Reader in = opened(data, size, spec);
  Request request;
  request.round = in.number<std::uint32_t>("the round");
  request.id = in.number<std::uint64_t>("the round");
  read_order(in, request);
  request.theta = read_theta(in, spec, held);
  const int count = in.number<std::uint16_t>("the number of arrays");
  for (int i = 0; i < count; ++i) {
    Array array = read_array(in);
    if (request.find(array.name) != nullptr)
      refuse("the message holds the array " + array.name + " twice");
    request.arrays.push_back(std::move(array));
  }
  in.finish();
  return request;
}

void encode_reply(Writer& out, const Reply& reply, const Request& request, const ParamSpec& spec) {
  const std::size_t start = out.bytes.size();
  out.number(MAGIC);
  out.number(static_cast<std::uint8_t>(FORMAT_VERSION));
  out.number(static_cast<std::uint8_t>(REPLY));
  out.number(spec.fingerprint);
  out.number(static_cast<std::uint64_t>(reply.device));
  out.number(static_cast<std::uint64_t>(reply.samples));
  out.number(static_cast<std::uint32_t>(request.round));
  out.number(request.id);
  write_metrics(out, reply);
  write_theta(out, reply, request, spec);
  write_gradients(out, reply, spec);
  write_arrays(out, reply);
  out.number(crc32(out.bytes.data() + start, out.bytes.size() - start));
}

}  // namespace fedtiny::device
