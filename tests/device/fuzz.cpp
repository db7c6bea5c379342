// Give fedtiny-device damaged streams: fuzz DATA CORPUS MESSAGES SEED. The corpus has a length u32
// and the bytes of each message; the first is the spec, the second a request that needs nothing.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>

#include "device.h"
#include "memory.h"

namespace {

using namespace fedtiny::device;

constexpr std::size_t LIMIT = 4u << 20;  // bytes that the device may take
constexpr int SESSION = 60;              // messages of a stream
constexpr unsigned MOST_SECONDS = 120;   // for a stream

std::mt19937_64 draw;

std::size_t below(std::size_t bound) { return static_cast<std::size_t>(draw() % bound); }

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

Bytes file(const char* path) {
  Bytes found;
  std::FILE* from = std::fopen(path, "rb");
  if (from == nullptr) fail("a file cannot be read");
  for (int byte = std::fgetc(from); byte != EOF; byte = std::fgetc(from))
    found.push_back(static_cast<std::uint8_t>(byte));
  std::fclose(from);
  return found;
}

std::vector<Bytes> messages_of(const Bytes& corpus) {
  std::vector<Bytes> found;
  for (Reader in(corpus.data(), corpus.size()); in.left() > 0;) {
    const auto size = in.number<std::uint32_t>("the corpus");
    const std::uint8_t* bytes = in.take(size, "the corpus");
    found.emplace_back(bytes, bytes + size);
  }
  return found;
}

void damage(Bytes& message) {
  const std::size_t at = below(message.size());
  const auto place = message.begin() + static_cast<std::ptrdiff_t>(at);
  const std::size_t length = std::min(message.size() - at, 1 + below(16));
  const auto end = place + static_cast<std::ptrdiff_t>(length);
  constexpr std::uint8_t ODD[] = {0, 1, 0x7f, 0x80, 0xff, '0', '9', '"', '[', '}'};
  switch (below(7)) {
    case 0: *place = static_cast<std::uint8_t>(*place ^ (1u << below(8))); break;
    case 1: *place = static_cast<std::uint8_t>(draw()); break;
    case 2: std::fill(place, end, ODD[below(sizeof ODD)]); break;
    case 3: message.erase(place, end); break;
    case 4: {
      const Bytes copy(place, end);
      message.insert(place, copy.begin(), copy.end());
      break;
    }
    case 5: message.resize(at + 1); break;
    default:
      for (auto byte = place; byte < end; ++byte) *byte = static_cast<std::uint8_t>(draw());
  }
  if (message.empty()) message.push_back(0);
}

// Another shape of as many values for a prunable tensor of a spec.
void reshape(Bytes& spec) {
  std::string text(spec.begin(), spec.end());
  const std::size_t open = text.find('[', text.find("\"prunable\"") + below(80));
  const std::size_t close = text.find(']', open);
  if (close == std::string::npos) fail("the spec has no shape");
  long count = 1;
  for (char* at = text.data() + open; *at != ']';) count *= std::strtol(at + 1, &at, 10);
  const std::string whole = std::to_string(count);
  const std::string shapes[] = {whole, "1, 1, " + whole, whole + ", 1", "2, 2, " + whole};
  text.replace(open + 1, close - open - 1, shapes[below(4)]);
  spec.assign(text.begin(), text.end());
}

// The parameters of a spec, if it is one that could be taken.
std::optional<ParamSpec> params_of(Bytes spec) {
  try {
    const Json plain(reinterpret_cast<char*>(spec.data()), spec.size());
    return Spec(plain.root()).params;
  } catch (const Failure&) {
    return std::nullopt;
  }
}

// What a request says of its model and mask is that of a spec, so that more than that is looked at.
void mend_model(Bytes& message, const ParamSpec& params) {
  constexpr std::size_t FINGERPRINT = 10, TEXT = 26;
  constexpr int MASK_AND_VALUES = 3;
  std::memcpy(message.data() + FINGERPRINT, &params.fingerprint, sizeof params.fingerprint);
  Reader in(message.data(), message.size());
  in.take(TEXT, "its head");
  in.take(in.number<std::uint32_t>("its text"), "its text");
  if (in.number<std::uint8_t>("its form") != MASK_AND_VALUES) return;
  std::uint8_t* place = message.data() + (message.size() - in.left());
  in.number<std::uint64_t>("its mask");
  try {
    std::vector<Positions> layers;
    for (const Tensor& layer : params.prunable) layers.push_back(read_positions(in, layer.size));
    const Mask mask(params, std::move(layers));
    std::memcpy(place, &mask.version, sizeof mask.version);
  } catch (const Failure&) {  // its positions are not those of this model
  }
}

// So that more than the checksum is looked at.
void mend_checksum(Bytes& message) {
  if (message.size() < 12) return;
  const std::uint32_t sum = crc32(message.data() + 4, message.size() - 8);
  std::memcpy(message.data() + message.size() - 4, &sum, sizeof sum);
}

void append(Bytes& stream, const Bytes& message, bool damaged_frame) {
  Writer frame;
  frame.text("FTch");
  frame.number(static_cast<std::uint64_t>(message.size()));
  if (damaged_frame) frame.bytes[below(frame.bytes.size())] ^= static_cast<std::uint8_t>(draw());
  stream.insert(stream.end(), frame.bytes.begin(), frame.bytes.end());
  stream.insert(stream.end(), message.begin(), message.end());
}

// What is to be read lies in memory; what is written must be frames of answers.
class Tape : public Stream {
 public:
  explicit Tape(const Bytes& given) : given_(given) {}

  bool read(void* to, std::size_t size) override {
    if (size > given_.size() - at_) return false;
    std::memcpy(to, given_.data() + at_, size);
    at_ += size;
    return true;
  }

  bool write(const void* from, std::size_t size) override {
    const auto* bytes = static_cast<const std::uint8_t*>(from);
    if (expected_ == 0) {
      if (size != 12 || std::memcmp(bytes, "FTch", 4) != 0) fail("an answer is no frame");
      std::memcpy(&expected_, bytes + 4, sizeof expected_);
      if (expected_ == 0) fail("an answer is empty");
      return true;
    }
    if (size != expected_ || bytes[0] > 4 || bytes[0] == 2) fail("an answer has no outcome");
    ++outcomes[bytes[0]];
    expected_ = 0;
    return true;
  }

  static std::size_t outcomes[5];

 private:
  const Bytes& given_;
  std::size_t at_ = 0;
  std::uint64_t expected_ = 0;
};
std::size_t Tape::outcomes[5] = {};

Bytes damaged_stream(const std::vector<Bytes>& corpus, bool lossy) {
  Bytes stream;
  Bytes spec = corpus[0];
  const bool damaged = below(4) == 0;
  if (damaged && below(2) == 0) damage(spec);
  else if (damaged) reshape(spec);
  const std::optional<ParamSpec> params = damaged ? params_of(spec) : std::nullopt;
  append(stream, spec, false);
  for (int i = 1; i < SESSION; ++i) {
    const bool last = i + 1 == SESSION;
    Bytes message = corpus[last ? 0 : i == 1 ? 1 : 1 + below(corpus.size() - 1)];
    if (params && !last) mend_model(message, *params);
    for (std::size_t times = i == 1 ? 0 : below(4); times > 0; --times) damage(message);
    if (!last && (i == 1 || below(4) > 0)) mend_checksum(message);
    append(stream, message, below(lossy ? 50 : 1000) == 0);
  }
  return stream;
}

}  // namespace

int main(int count, char** given) {
  if (count != 5) fail("fuzz DATA CORPUS MESSAGES SEED");
  const Bytes bytes = file(given[1]);
  const std::vector<Bytes> corpus = messages_of(file(given[2]));
  const long messages = std::atol(given[3]);
  draw.seed(static_cast<std::uint64_t>(std::atoll(given[4])));
  const Data data(bytes.data(), bytes.size());
  std::size_t highest = 0;
  for (long done = 0; done < messages; done += SESSION) {
    alarm(MOST_SECONDS);
    const bool lossy = below(2) == 0;
    const Bytes stream = damaged_stream(corpus, lossy);
    const std::size_t before = memory::held();
    memory::set_limit(before + LIMIT);
    {
      Device device(data, "fuzzed");
      Tape tape(stream);
      memory::forget_peak();
      serve(tape, device, lossy);
    }
    highest = std::max(highest, memory::peak() - before);
    memory::set_limit(0);
    if (highest > LIMIT) fail("a device took more than it may");
    if (memory::held() != before) fail("a device did not give back what it took");
  }
  std::printf("%ld messages: %zu done, %zu failed, %zu missing, %zu hello; at most %zu bytes\n",
              messages, Tape::outcomes[0], Tape::outcomes[1], Tape::outcomes[3],
              Tape::outcomes[4], highest);
  return 0;
}
