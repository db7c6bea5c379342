#include "device.h"

#include <algorithm>
#include <limits>
#include <new>

#include "memory.h"
#include "program.h"

#ifndef FEDTINY_VERSION
#define FEDTINY_VERSION "0"
#endif

namespace fedtiny::device {
namespace {

constexpr std::string_view FRAME = "FTch", MESSAGE = "FTNY";
constexpr std::uint64_t MAX_FRAME = std::uint64_t{1} << 30;
constexpr std::size_t NUMBER_BYTES = 4, STEP = 1u << 16;
constexpr std::size_t MAX_QUESTION = 17;  // bytes, shorter than any request

Bytes outcome(Outcome kind, std::string_view text) noexcept {
  try {
    Bytes found{static_cast<std::uint8_t>(kind)};
    found.insert(found.end(), text.begin(), text.end());
    return found;
  } catch (const std::bad_alloc&) {
    return {};  // there is not even memory to say so
  }
}

// Do what may fail; whatever comes of it is an answer.
template <class Work>
Bytes guarded(Work&& work) noexcept {
  try {
    return work();
  } catch (const Failure& failure) {
    return outcome(failure.missing ? Outcome::missing : Outcome::failed, failure.text);
  } catch (const std::bad_alloc&) {
    return outcome(Outcome::failed, "this device has too little memory for what it was asked");
  } catch (const std::exception& error) {
    return outcome(Outcome::failed, error.what());
  }
}

std::string quoted(std::string_view text) {
  std::string found = "\"";
  for (const char sign : text)
    if (sign >= ' ' && sign < 127 && sign != '"' && sign != '\\') found += sign;
  return found + "\"";
}

bool starts_with(const Bytes& bytes, std::size_t at, std::string_view mark) {
  return bytes.size() >= at + mark.size() &&
         std::equal(mark.begin(), mark.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

Bytes Device::hello(std::string_view question) noexcept {
  return guarded([&] {
    const auto number = [](std::int64_t value) { return std::to_string(value); };
    std::string text = "{\"fedtiny\":" + quoted(FEDTINY_VERSION);
    text += ",\"wire\":" + number(FORMAT_VERSION) + ",\"link\":1,\"name\":" + quoted(name_);
    text += ",\"device\":" + (data_.device < 0 ? "null" : number(data_.device));
    text += ",\"samples\":" + number(static_cast<std::int64_t>(data_.indices.size()));
    text += ",\"development\":" + number(static_cast<std::int64_t>(data_.development.size()));
    text += ",\"shape\":[" + number(data_.channels) + "," + number(data_.height) + "," +
            number(data_.width) + "],\"classes\":" + number(data_.classes);
    text += ",\"digest\":" + quoted(hex(__builtin_bswap64(data_.digest), 16));
    text += ",\"instructions\":" + quoted(fedtiny_instructions());
    text += ",\"lanes\":" + number(fedtiny_lanes());
    text += ",\"memory\":" + std::to_string(memory::limit());
    text += ",\"question\":" + quoted(question) + "}";
    return outcome(Outcome::hello, text);
  });
}

void Device::forget() {
  held_ = {};
  engine_.reset();
  spec_.reset();
}

Bytes Device::answer(Bytes message) noexcept {
  if (message.empty() || (message[0] == '?' && message.size() <= MAX_QUESTION)) {
    forget();
    const std::string_view asked(reinterpret_cast<const char*>(message.data()), message.size());
    return hello(asked.empty() ? asked : asked.substr(1));
  }
  return guarded([&] {
    if (starts_with(message, NUMBER_BYTES, MESSAGE)) return do_task(std::move(message));
    if (message[0] == '{') return take_spec(message);
    refuse("this is neither a spec nor a request");
  });
}

Bytes Device::take_spec(Bytes& message) {
  forget();
  const Json plain(reinterpret_cast<char*>(message.data()), message.size());
  auto spec = std::make_unique<Spec>(plain.root());
  spec->preparation.fit(data_);
  engine_ = std::make_unique<Engine>(*spec, data_);
  spec_ = std::move(spec);
  return outcome(Outcome::done, "");
}

Bytes Device::do_task(Bytes message) {
  if (!engine_) refuse("this device was given no spec yet");
  Reader head(message.data(), NUMBER_BYTES);
  const std::int64_t device = head.number<std::uint32_t>("a number");
  if (data_.device >= 0 && data_.device != device)
    refuse("this device has the data of device " + std::to_string(data_.device) + ", not of " +
           std::to_string(device));
  const Request request =
      decode_request(message.data() + NUMBER_BYTES, message.size() - NUMBER_BYTES, spec_->params,
                     held_);
  message = {};  // its memory goes back
  held_.theta = request.theta;
  memory::forget_peak();
  plan_ = planned_bytes(*engine_, request);
  if (memory::limit() != 0 && plan_ > static_cast<std::int64_t>(memory::limit()))
    refuse("this request needs " + std::to_string(plan_) + " bytes, and this device has " +
           std::to_string(memory::limit()) + "; lower --train.batch-size or the density");
  const Reply reply = run_program(*engine_, request, device);
  std::size_t room = 4096 + (reply.theta ? reply.theta->values.size() * sizeof(float) : 0);
  for (const Array& array : reply.arrays) room += array.data.size();
  Writer out;
  out.bytes.reserve(room);
  out.number(static_cast<std::uint8_t>(Outcome::done));
  encode_reply(out, reply, request, spec_->params);
  return std::move(out.bytes);
}

namespace {

bool send(Stream& stream, const Bytes& payload) {
  static constexpr std::uint8_t NO_MEMORY[] = {static_cast<std::uint8_t>(Outcome::failed)};
  const std::uint64_t size = payload.empty() ? sizeof NO_MEMORY : payload.size();
  std::uint8_t head[12];
  std::memcpy(head, FRAME.data(), FRAME.size());
  std::memcpy(head + FRAME.size(), &size, sizeof size);
  return stream.write(head, sizeof head) &&
         stream.write(payload.empty() ? NO_MEMORY : payload.data(),
                      static_cast<std::size_t>(size));
}

// Where the next frame begins; on a line that is not lossy it must be here.
bool find_frame(Stream& stream, bool lossy) {
  char seen[4];
  stream.hurried = false;
  if (!stream.read(seen, sizeof seen)) return false;
  while (std::string_view(seen, sizeof seen) != FRAME) {
    if (!lossy) return false;
    std::memmove(seen, seen + 1, sizeof seen - 1);
    if (!stream.read(seen + 3, 1)) return false;
  }
  stream.hurried = lossy;
  return true;
}

bool skip(Stream& stream, std::uint64_t size) {
  char lost[256];
  for (; size > 0; size -= std::min<std::uint64_t>(size, sizeof lost))
    if (!stream.read(lost, static_cast<std::size_t>(std::min<std::uint64_t>(size, sizeof lost))))
      return false;
  return true;
}

Bytes too_long(std::uint64_t size) noexcept {
  return guarded([size]() -> Bytes {
    refuse("a message of " + std::to_string(size) + " bytes does not fit into this device");
  });
}

// Room for a message, if there is any; none of it is touched before the message comes.
bool make_room(Bytes& message, std::uint64_t size) noexcept {
  try {
    message.reserve(static_cast<std::size_t>(size));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool fill(Stream& stream, Bytes& message, std::uint64_t size) {
  while (message.size() < size) {
    const std::size_t at = message.size();
    message.resize(at + static_cast<std::size_t>(std::min<std::uint64_t>(size - at, STEP)));
    if (!stream.read(message.data() + at, message.size() - at)) return false;
  }
  return true;
}

// The rest of a frame and the answer to it; false if the frame does not end, or nobody listens.
bool answer_frame(Stream& stream, Device& device) {
  std::uint64_t size = 0;
  Bytes message;
  if (!stream.read(&size, sizeof size) || size > MAX_FRAME) return false;
  if (!make_room(message, size)) return skip(stream, size) && send(stream, too_long(size));
  return fill(stream, message, size) && send(stream, device.answer(std::move(message)));
}

}  // namespace

void serve(Stream& stream, Device& device, bool lossy, void (*after)(const Device&)) {
  if (!send(stream, device.hello())) return;
  while (find_frame(stream, lossy)) {
    const bool answered = answer_frame(stream, device);
    if (!answered && !lossy) return;
    if (answered && after != nullptr) after(device);
  }
}

}  // namespace fedtiny::device
