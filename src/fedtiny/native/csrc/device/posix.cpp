// fedtiny-device on Linux and other Unix systems: its data from a file, its stream from standard
// input and output, a TCP connection or a serial line.
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "device.h"
#include "memory.h"

namespace {

using namespace fedtiny::device;

constexpr unsigned FIRST_WAIT = 500, LONGEST_WAIT = 30000;  // milliseconds before connecting again

constexpr char USAGE[] =
    "usage: fedtiny-device DATA [--connect HOST:PORT | --serial TTY [--baud RATE]]\n"
    "                      [--name NAME] [--memory BYTES] [--verbose]\n"
    "A device that trains without Python. Without --connect and --serial it answers on its\n"
    "standard output what comes on its standard input.\n";

struct Arguments {
  std::string data, host, port, serial, name = "fedtiny-device";
  long baud = 115200;
  std::size_t memory = 0;
  bool verbose = false;
};

[[noreturn]] void leave(const std::string& sentence) {
  std::fprintf(stderr, "fedtiny-device: %s\n", sentence.c_str());
  std::exit(1);
}

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

long number(const char* text, const char* option) {
  char* end = nullptr;
  errno = 0;
  const long found = std::strtol(text, &end, 10);
  if (end == text || *end != 0 || errno != 0 || found < 0)
    leave(std::string(option) + " takes a whole number, not '" + text + "'");
  return found;
}

void split_address(Arguments& found, const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size())
    leave("--connect takes HOST:PORT, not '" + address + "'");
  found.host = address.substr(0, colon);
  found.port = address.substr(colon + 1);
  if (found.host.front() == '[' && found.host.back() == ']')
    found.host = found.host.substr(1, found.host.size() - 2);
}

Arguments parsed(int count, char** given) {
  Arguments found;
  for (int i = 1; i < count; ++i) {
    const std::string option = given[i];
    if (option == "--help" || option == "-h") {
      std::fputs(USAGE, stdout);
      std::exit(0);
    } else if (option == "--verbose") {
      found.verbose = true;
    } else if (option.compare(0, 2, "--") != 0) {
      if (!found.data.empty()) leave("one data file is enough");
      found.data = option;
    } else if (i + 1 == count) {
      leave(option + " needs a value, or there is no such option; see --help");
    } else if (option == "--connect") {
      split_address(found, given[++i]);
    } else if (option == "--serial") {
      found.serial = given[++i];
    } else if (option == "--baud") {
      found.baud = number(given[++i], "--baud");
    } else if (option == "--name") {
      found.name = given[++i];
    } else if (option == "--memory") {
      found.memory = static_cast<std::size_t>(number(given[++i], "--memory"));
    } else {
      leave("there is no option " + option + "; see --help");
    }
  }
  if (found.data.empty()) {
    std::fputs(USAGE, stderr);
    std::exit(2);
  }
  if (!found.host.empty() && !found.serial.empty()) leave("give --connect or --serial, not both");
  return found;
}

// The file stays open and its pages come and go with the system's memory.
Data mapped(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat told {};
  if (file < 0 || fstat(file, &told) != 0 || told.st_size < 1)
    leave("cannot read the data file '" + path + "'");
  const auto size = static_cast<std::size_t>(told.st_size);
  void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (bytes == MAP_FAILED) leave("cannot map the data file '" + path + "'");
  close(file);
  return Data(bytes, size);
}

int connected(const Arguments& arguments) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(arguments.host.c_str(), arguments.port.c_str(), &hints, &found) != 0) return -1;
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
    default: leave("this is no rate of a serial line: " + std::to_string(baud));
  }
}

int opened_line(const Arguments& arguments) {
  const int line = open(arguments.serial.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (line < 0) return -1;
  termios settings{};
  if (tcgetattr(line, &settings) == 0) {
    cfmakeraw(&settings);
    settings.c_cflag |= CLOCAL | CREAD;
    settings.c_cc[VMIN] = 1;
    settings.c_cc[VTIME] = 0;
    cfsetispeed(&settings, speed_of(arguments.baud));
    cfsetospeed(&settings, speed_of(arguments.baud));
    tcsetattr(line, TCSANOW, &settings);
  }
  return line;
}

bool answered = false;  // since the last connection

void note(const Device&) { answered = true; }

void tell(const Device& device) {
  answered = true;
  if (device.plan() > 0)
    std::fprintf(stderr, "planned %lld bytes, took %llu\n", static_cast<long long>(device.plan()),
                 static_cast<unsigned long long>(memory::peak()));
}

void pause(unsigned milliseconds) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(milliseconds / 1000);
  time.tv_nsec = static_cast<long>(milliseconds % 1000) * 1000000;
  nanosleep(&time, nullptr);
}

// A lost connection is made again, after waits that grow as long as there is none.
[[noreturn]] void keep_connected(const Arguments& arguments, Device& device) {
  const bool serial = !arguments.serial.empty();
  for (unsigned wait = FIRST_WAIT;; wait = std::min(2 * wait, LONGEST_WAIT)) {
    const int link = serial ? opened_line(arguments) : connected(arguments);
    if (link >= 0) {
      answered = false;
      Descriptors stream(link, link);
      serve(stream, device, serial, arguments.verbose ? tell : note);
      device.forget();
      close(link);
      if (answered) wait = FIRST_WAIT;
    }
    if (arguments.verbose) std::fprintf(stderr, "no connection; waiting %u ms\n", wait);
    pause(wait);
  }
}

}  // namespace

int main(int count, char** given) {
  const Arguments arguments = parsed(count, given);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const Data data = mapped(arguments.data);
    memory::set_limit(arguments.memory);
    Device device(data, arguments.name);
    if (!arguments.host.empty() || !arguments.serial.empty()) keep_connected(arguments, device);
    Descriptors stream(STDIN_FILENO, STDOUT_FILENO);
    serve(stream, device, false, arguments.verbose ? tell : note);
    return 0;
  } catch (const std::exception& error) {
    leave(error.what());
  }
}
