// Streams of Unix: what is read and written by a file descriptor.
#include "transport.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>

namespace fedtiny::device {
namespace {

class Descriptors : public Stream {
 public:
  Descriptors(int in, int out) : in_(in), out_(out) {}

  bool read(void* to, std::size_t size) override {
    for (auto* at = static_cast<char*>(to); size > 0;) {
      pollfd waiting{in_, POLLIN, 0};
      if (hurried && poll(&waiting, 1, PATIENCE) == 0) return false;
      const ssize_t got = ::read(in_, at, size);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += got;
      size -= static_cast<std::size_t>(got);
    }
    return true;
  }

  bool write(const void* from, std::size_t size) override {
    for (const auto* at = static_cast<const char*>(from); size > 0;) {
      const ssize_t put = ::write(out_, at, size);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return false;
      at += put;
      size -= static_cast<std::size_t>(put);
    }
    return true;
  }

 private:
  int in_, out_;
};

class Connection : public Descriptors {
 public:
  explicit Connection(int link) : Descriptors(link, link), link_(link) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() override { close(link_); }

 private:
  int link_;
};

class Tcp : public Transport {
 public:
  explicit Tcp(const Address& address) : address_(address) {}

  std::unique_ptr<Stream> open() override {
    const int link = connected(address_);
    return link < 0 ? nullptr : std::make_unique<Connection>(link);
  }

 private:
  Address address_;
};

speed_t speed_of(long baud) {
  switch (baud) {
    case 9600: return B9600;
    case 19200: return B19200;
    case 38400: return B38400;
    case 57600: return B57600;
    case 115200: return B115200;
    case 230400: return B230400;
#ifdef B460800
    case 460800: return B460800;
    case 921600: return B921600;
#endif
    default: refuse("this is no rate of a serial line: " + std::to_string(baud));
  }
}

class Line : public Transport {
 public:
  Line(std::string path, speed_t speed) : path_(std::move(path)), speed_(speed) {}

  std::unique_ptr<Stream> open() override {
    const int line = ::open(path_.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (line < 0) return nullptr;
    termios settings{};
    if (tcgetattr(line, &settings) == 0) {
      cfmakeraw(&settings);
      settings.c_cflag |= CLOCAL | CREAD;
      settings.c_cc[VMIN] = 1;
      settings.c_cc[VTIME] = 0;
      cfsetispeed(&settings, speed_);
      cfsetospeed(&settings, speed_);
      tcsetattr(line, TCSANOW, &settings);
    }
    return std::make_unique<Connection>(line);
  }

 private:
  std::string path_;
  speed_t speed_;
};

}  // namespace

int connected(const Address& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found) != 0) return -1;
  int link = -1;
  for (const addrinfo* at = found; at != nullptr && link < 0; at = at->ai_next) {
    link = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
    if (link >= 0 && connect(link, at->ai_addr, at->ai_addrlen) != 0) {
      close(link);
      link = -1;
    }
  }
  freeaddrinfo(found);
  const int on = 1, idle = 30, interval = 10, probes = 3;  // seconds, as places.py has them
  if (link >= 0) {
    setsockopt(link, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(link, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
#ifdef TCP_KEEPIDLE
    setsockopt(link, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(link, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(link, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
#endif
  }
  return link;
}

std::unique_ptr<Stream> standard_streams() {
  return std::make_unique<Descriptors>(STDIN_FILENO, STDOUT_FILENO);
}

std::unique_ptr<Transport> over_tcp(const Address& address) {
  return std::make_unique<Tcp>(address);
}

std::unique_ptr<Transport> over_line(const std::string& path, long baud) {
  return std::make_unique<Line>(path, speed_of(baud));
}

}  // namespace fedtiny::device
