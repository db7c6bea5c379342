// What carries a device's stream on Unix: standard input and output, TCP, TLS or a serial line.
#pragma once
#include <memory>
#include <string>

#include "device.h"

namespace fedtiny::device {

// Makes connections to the gateway, one after the other.
class Transport {
 public:
  virtual ~Transport() = default;
  // A fresh connection, or none if nobody is there now.
  virtual std::unique_ptr<Stream> open() = 0;
};

// A connection to a host, with what TLS needs if it is to be encrypted.
struct Address {
  std::string host, port;
  std::string ca, cert, key;  // PEM files
};

std::unique_ptr<Stream> standard_streams();
std::unique_ptr<Transport> over_tcp(const Address& address);
std::unique_ptr<Transport> over_line(const std::string& path, long baud);

// The descriptor of a connection of TCP, or -1 if nobody is there now.
int connected(const Address& address);

#ifdef FEDTINY_TLS
// The gateway must show a certificate for its host that `ca` signed; the device shows `cert`.
std::unique_ptr<Transport> over_tls(const Address& address);
#endif

}  // namespace fedtiny::device
