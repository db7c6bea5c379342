// fedtiny-device on Linux and other Unix systems: its data from a file, its stream from standard
// input and output, a connection of TCP or TLS, or a serial line.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "memory.h"
#include "transport.h"

namespace {

using namespace fedtiny::device;

constexpr unsigned FIRST_WAIT = 500, LONGEST_WAIT = 30000;  // milliseconds before connecting again

constexpr char USAGE[] =
    "usage: fedtiny-device DATA [--connect HOST:PORT [--ca FILE [--cert FILE --key FILE]]]\n"
    "                      [--serial TTY [--baud RATE]]\n"
    "                      [--name NAME] [--memory BYTES] [--verbose]\n"
    "A device that trains without Python. Without --connect and --serial it answers on its\n"
    "standard output what comes on its standard input. With --ca, in a build with TLS, the\n"
    "connection is encrypted, and the gateway needs a certificate that the file's signed.\n";

struct Arguments {
  std::string data, serial, name = "fedtiny-device";
  Address address;
  long baud = 115200;
  std::size_t memory = 0;
  bool verbose = false;
};

[[noreturn]] void leave(const std::string& sentence) {
  std::fprintf(stderr, "fedtiny-device: %s\n", sentence.c_str());
  std::exit(1);
}

long number(const char* text, const char* option) {
  char* end = nullptr;
  errno = 0;
  const long found = std::strtol(text, &end, 10);
  if (end == text || *end != 0 || errno != 0 || found < 0)
    leave(std::string(option) + " takes a whole number, not '" + text + "'");
  return found;
}

void split_address(Address& found, const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size())
    leave("--connect takes HOST:PORT, not '" + address + "'");
  found.host = address.substr(0, colon);
  found.port = address.substr(colon + 1);
  if (found.host.front() == '[' && found.host.back() == ']')
    found.host = found.host.substr(1, found.host.size() - 2);
}

void check_link(const Arguments& found) {
  const Address& address = found.address;
  if (!address.host.empty() && !found.serial.empty()) leave("give --connect or --serial, not both");
  if (address.cert.empty() != address.key.empty()) leave("give --cert and --key together");
  if (!address.cert.empty() && address.ca.empty()) leave("--cert needs --ca, which is for TLS");
  if (!address.ca.empty() && address.host.empty()) leave("--ca is for --connect");
#ifndef FEDTINY_TLS
  if (!address.ca.empty())
    leave("this program was built without TLS, which --ca needs; build it with --tls");
#endif
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
      split_address(found.address, given[++i]);
    } else if (option == "--ca") {
      found.address.ca = given[++i];
    } else if (option == "--cert") {
      found.address.cert = given[++i];
    } else if (option == "--key") {
      found.address.key = given[++i];
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
  check_link(found);
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

std::unique_ptr<Transport> transport_of(const Arguments& arguments) {
  if (!arguments.serial.empty()) return over_line(arguments.serial, arguments.baud);
  if (arguments.address.host.empty()) return nullptr;
#ifdef FEDTINY_TLS
  if (!arguments.address.ca.empty()) return over_tls(arguments.address);
#endif
  return over_tcp(arguments.address);
}

// A lost connection is made again, after waits that grow as long as there is none.
[[noreturn]] void keep_connected(const Arguments& arguments, Transport& transport, Device& device) {
  const bool serial = !arguments.serial.empty();
  for (unsigned wait = FIRST_WAIT;; wait = std::min(2 * wait, LONGEST_WAIT)) {
    if (const std::unique_ptr<Stream> stream = transport.open()) {
      answered = false;
      serve(*stream, device, serial, arguments.verbose ? tell : note);
      device.forget();
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
    if (const auto transport = transport_of(arguments))
      keep_connected(arguments, *transport, device);
    serve(*standard_streams(), device, false, arguments.verbose ? tell : note);
    return 0;
  } catch (const std::exception& error) {
    leave(error.what());
  }
}
