// A device at the end of a link: it says who it is, takes a spec, and answers requests.
//
// Frames both ways: "FTch", the length u64, the bytes (devices/channel.py). The first byte of an
// answer says what it is.
#pragma once
#include <memory>

#include "engine.h"

namespace fedtiny::device {

enum class Outcome : std::uint8_t { done = 0, failed = 1, missing = 3, hello = 4 };

constexpr int PATIENCE = 2000;  // milliseconds that a line may be silent inside a frame

// A stream of bytes to a gateway.
class Stream {
 public:
  virtual ~Stream() = default;
  // All of it, or false if the stream has ended, or was silent for too long when it was `hurried`.
  virtual bool read(void* to, std::size_t size) = 0;
  virtual bool write(const void* from, std::size_t size) = 0;

  bool hurried = false;  // inside a frame of a line that may lose bytes
};

class Device {
 public:
  Device(const Data& data, std::string name) : data_(data), name_(std::move(name)) {}

  // What to answer to a message; it never throws, whatever the message.
  Bytes answer(Bytes message) noexcept;
  // Who it is; it repeats what it was asked with.
  Bytes hello(std::string_view question = {}) noexcept;
  void forget();
  // Bytes that the last request was planned to take at most.
  std::int64_t plan() const { return plan_; }

 private:
  Bytes take_spec(Bytes& message);
  Bytes do_task(Bytes message);

  const Data& data_;
  std::string name_;
  std::unique_ptr<Spec> spec_;
  std::unique_ptr<Engine> engine_;
  Held held_;
  std::int64_t plan_ = 0;
};

// Answer frames until the stream ends or somebody else writes into it; a line that may lose bytes
// is searched for the next frame instead, also after a silence. After an answer `after` is called.
void serve(Stream& stream, Device& device, bool lossy = false,
           void (*after)(const Device&) = nullptr);

}  // namespace fedtiny::device
