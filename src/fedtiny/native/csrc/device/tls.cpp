// TLS by mbedTLS 2.28 or 3: both sides know whom they speak with, and nobody else reads it.
#include <arpa/inet.h>
#include <mbedtls/ctr_drbg.h>
#include <mbedtls/entropy.h>
#include <mbedtls/error.h>
#include <mbedtls/ssl.h>
#include <mbedtls/version.h>
#include <mbedtls/x509_crt.h>
#include <unistd.h>
#if MBEDTLS_VERSION_NUMBER >= 0x03000000 && defined(MBEDTLS_PSA_CRYPTO_C)
#include <psa/crypto.h>
#endif

#include <cerrno>
#include <cstdio>

#include "transport.h"

namespace fedtiny::device {
namespace {

constexpr char REFUSED[] = "the gateway refuses this device's certificate, or that it has none";

[[noreturn]] void refuse_for(const std::string& what, int error) {
  char reason[128] = "";
  mbedtls_strerror(error, reason, sizeof reason);
  refuse(what + ": " + reason);
}

// The network bytes of a host that is an address, or none if it is a name.
std::string address_bytes(const std::string& host) {
  char bytes[16];
  if (inet_pton(AF_INET, host.c_str(), bytes) == 1) return {bytes, 4};
  if (inet_pton(AF_INET6, host.c_str(), bytes) == 1) return {bytes, 16};
  return {};
}

bool is_for(const mbedtls_x509_crt& certificate, const std::string& address) {
  for (const mbedtls_x509_sequence* at = &certificate.subject_alt_names; at != nullptr;
       at = at->next)
    if ((at->buf.tag & MBEDTLS_ASN1_TAG_VALUE_MASK) == MBEDTLS_X509_SAN_IP_ADDRESS &&
        address == std::string(reinterpret_cast<const char*>(at->buf.p), at->buf.len))
      return true;
  return false;
}

// mbedTLS compares names alone (until 3.5), so that addresses are compared here.
int check_address(void* address, mbedtls_x509_crt* certificate, int depth, std::uint32_t* flags) {
  if (depth == 0 && !is_for(*certificate, *static_cast<const std::string*>(address)))
    *flags |= MBEDTLS_X509_BADCERT_CN_MISMATCH;
  return 0;
}

int send_some(void* link, const unsigned char* from, std::size_t size) {
  for (;;) {
    const ssize_t put = ::write(*static_cast<const int*>(link), from, size);
    if (put >= 0) return static_cast<int>(put);
    if (errno != EINTR) return MBEDTLS_ERR_SSL_INTERNAL_ERROR;
  }
}

int receive_some(void* link, unsigned char* to, std::size_t size) {
  for (;;) {
    const ssize_t got = ::read(*static_cast<const int*>(link), to, size);
    if (got >= 0) return static_cast<int>(got);
    if (errno != EINTR) return MBEDTLS_ERR_SSL_CONN_EOF;
  }
}

// Whether nothing is wrong and the same call has to be made again.
bool is_to_be_continued(int outcome) {
#ifdef MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET
  if (outcome == MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET) return true;
#endif
  return outcome == MBEDTLS_ERR_SSL_WANT_READ || outcome == MBEDTLS_ERR_SSL_WANT_WRITE;
}

class Session : public Stream {
 public:
  Session(int link, const mbedtls_ssl_config& config, const char* name) : link_(link) {
    mbedtls_ssl_init(&ssl_);
    if (mbedtls_ssl_setup(&ssl_, &config) != 0 || mbedtls_ssl_set_hostname(&ssl_, name) != 0)
      failed_ = MBEDTLS_ERR_SSL_ALLOC_FAILED;
    mbedtls_ssl_set_bio(&ssl_, &link_, send_some, receive_some, nullptr);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override {
    mbedtls_ssl_free(&ssl_);
    close(link_);
  }

  void shake_hands() {
    int outcome = failed_;
    while (outcome == 0 || is_to_be_continued(outcome)) {
      outcome = mbedtls_ssl_handshake(&ssl_);
      if (outcome == 0) return;
    }
    const std::uint32_t flags = mbedtls_ssl_get_verify_result(&ssl_);
    char reason[256] = "";
    if (outcome == MBEDTLS_ERR_X509_CERT_VERIFY_FAILED && flags != UINT32_MAX &&
        mbedtls_x509_crt_verify_info(reason, sizeof reason, "", flags) > 0) {
      const std::string all = reason;
      refuse("the gateway's certificate is refused: " + all.substr(0, all.find('\n')));
    }
    if (outcome == MBEDTLS_ERR_SSL_FATAL_ALERT_MESSAGE) refuse(REFUSED);
    refuse_for("no TLS with the gateway", outcome);
  }

  bool read(void* to, std::size_t size) override {
    for (auto* at = static_cast<unsigned char*>(to); size > 0;) {
      const int got = mbedtls_ssl_read(&ssl_, at, size);
      if (is_to_be_continued(got)) continue;
      if (got <= 0) return ended(got);
      at += got;
      size -= static_cast<std::size_t>(got);
    }
    return true;
  }

  bool write(const void* from, std::size_t size) override {
    for (const auto* at = static_cast<const unsigned char*>(from); size > 0;) {
      const int put = mbedtls_ssl_write(&ssl_, at, size);
      if (is_to_be_continued(put)) continue;
      if (put <= 0) return ended(put);
      at += put;
      size -= static_cast<std::size_t>(put);
    }
    return true;
  }

 private:
  // In TLS 1.3 a gateway refuses a device's certificate after the handshake.
  static bool ended(int outcome) {
    if (outcome == MBEDTLS_ERR_SSL_FATAL_ALERT_MESSAGE)
      std::fprintf(stderr, "fedtiny-device: %s\n", REFUSED);
    return false;
  }

  mbedtls_ssl_context ssl_;
  int link_, failed_ = 0;
};

// Headers of one version with the library of another would write over memory.
void check_version() {
  const unsigned linked = mbedtls_version_get_number();
  if (linked >> 16 != MBEDTLS_VERSION_NUMBER >> 16)
    refuse("it was built with headers of mbedTLS " MBEDTLS_VERSION_STRING
           " and the library of another version; build it anew with those of one");
}

class Tls : public Transport {
 public:
  explicit Tls(const Address& address) : address_(address), bytes_(address_bytes(address.host)) {
    check_version();
    mbedtls_entropy_init(&entropy_);
    mbedtls_ctr_drbg_init(&random_);
    mbedtls_x509_crt_init(&trusted_);
    mbedtls_x509_crt_init(&own_);
    mbedtls_pk_init(&key_);
    mbedtls_ssl_config_init(&config_);
#if MBEDTLS_VERSION_NUMBER >= 0x03000000 && defined(MBEDTLS_PSA_CRYPTO_C)
    if (psa_crypto_init() != PSA_SUCCESS) refuse("mbedTLS cannot be started");
#endif
    require("no random numbers", mbedtls_ctr_drbg_seed(&random_, mbedtls_entropy_func, &entropy_,
                                                       nullptr, 0));
    require("cannot use --ca '" + address.ca + "'",
            mbedtls_x509_crt_parse_file(&trusted_, address.ca.c_str()));
    require("no TLS", mbedtls_ssl_config_defaults(&config_, MBEDTLS_SSL_IS_CLIENT,
                                                  MBEDTLS_SSL_TRANSPORT_STREAM,
                                                  MBEDTLS_SSL_PRESET_DEFAULT));
    configure();
    if (!address.cert.empty()) show_certificate();
  }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  ~Tls() override {
    mbedtls_ssl_config_free(&config_);
    mbedtls_pk_free(&key_);
    mbedtls_x509_crt_free(&own_);
    mbedtls_x509_crt_free(&trusted_);
    mbedtls_ctr_drbg_free(&random_);
    mbedtls_entropy_free(&entropy_);
  }

  std::unique_ptr<Stream> open() override {
    const int link = connected(address_);
    if (link < 0) return nullptr;
    auto session = std::make_unique<Session>(link, config_,
                                             bytes_.empty() ? address_.host.c_str() : nullptr);
    try {
      session->shake_hands();
    } catch (const Failure& failure) {  // it may be trusted the next time
      std::fprintf(stderr, "fedtiny-device: %s\n", failure.what());
      return nullptr;
    }
    return session;
  }

 private:
  static void require(const std::string& what, int outcome) {
    if (outcome > 0) refuse(what + ": not all of its certificates are readable");
    if (outcome != 0) refuse_for(what, outcome);
  }

  void configure() {
    mbedtls_ssl_conf_authmode(&config_, MBEDTLS_SSL_VERIFY_REQUIRED);
    mbedtls_ssl_conf_ca_chain(&config_, &trusted_, nullptr);
    mbedtls_ssl_conf_rng(&config_, mbedtls_ctr_drbg_random, &random_);
    if (!bytes_.empty()) mbedtls_ssl_conf_verify(&config_, check_address, &bytes_);
#if MBEDTLS_VERSION_NUMBER < 0x03000000
    mbedtls_ssl_conf_min_version(&config_, MBEDTLS_SSL_MAJOR_VERSION_3,
                                 MBEDTLS_SSL_MINOR_VERSION_3);
#endif
  }

  void show_certificate() {
    require("cannot use --cert '" + address_.cert + "'",
            mbedtls_x509_crt_parse_file(&own_, address_.cert.c_str()));
    const char* file = address_.key.c_str();
#if MBEDTLS_VERSION_NUMBER >= 0x03000000
    const int found = mbedtls_pk_parse_keyfile(&key_, file, nullptr, mbedtls_ctr_drbg_random,
                                               &random_);
    const int paired = found != 0 ? found
                                  : mbedtls_pk_check_pair(&own_.pk, &key_, mbedtls_ctr_drbg_random,
                                                          &random_);
#else
    const int found = mbedtls_pk_parse_keyfile(&key_, file, nullptr);
    const int paired = found != 0 ? found : mbedtls_pk_check_pair(&own_.pk, &key_);
#endif
    require("cannot use --key '" + address_.key + "' with --cert", paired);
    require("cannot show --cert", mbedtls_ssl_conf_own_cert(&config_, &own_, &key_));
  }

  Address address_;
  std::string bytes_;  // of a host that is an address
  mbedtls_entropy_context entropy_;
  mbedtls_ctr_drbg_context random_;
  mbedtls_x509_crt trusted_, own_;
  mbedtls_pk_context key_;
  mbedtls_ssl_config config_;
};

}  // namespace

std::unique_ptr<Transport> over_tls(const Address& address) {
  return std::make_unique<Tls>(address);
}

}  // namespace fedtiny::device
