#include "json.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace fedtiny::device {
namespace {

constexpr int MAX_DEPTH = 32;
constexpr std::size_t MAX_VALUES = 1u << 20;
constexpr std::size_t MAX_DIGITS = 40;

[[noreturn]] void wrong(const char* what) {
  refuse(std::string("the text is not plain JSON: ") + what);
}

bool is_digit(char sign) { return sign >= '0' && sign <= '9'; }

char* write_utf8(char* to, unsigned code) {
  const auto put = [&to](unsigned byte) { *to++ = static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 63));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 63));
    put(0x80 | (code & 63));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 63));
    put(0x80 | (code >> 6 & 63));
    put(0x80 | (code & 63));
  }
  return to;
}

}  // namespace

Json::Json(char* text, std::size_t size) : at_(text), end_(text + size) {
  skip_space();
  read_value(0);
  skip_space();
  if (at_ != end_) wrong("more follows its end");
}

char Json::peek() {
  if (at_ == end_) wrong("it ends too early");
  return *at_;
}

void Json::expect(char sign) {
  if (peek() != sign) wrong("a sign is out of place");
  ++at_;
}

void Json::skip_space() {
  while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
}

bool Json::skip_word(std::string_view word) {
  if (static_cast<std::size_t>(end_ - at_) < word.size() ||
      std::string_view(at_, word.size()) != word)
    return false;
  at_ += word.size();
  return true;
}

std::int32_t Json::read_value(int depth) {
  if (depth > MAX_DEPTH || values_.size() >= MAX_VALUES) wrong("it holds too much");
  const auto place = static_cast<std::int32_t>(values_.size());
  values_.emplace_back();
  JsonValue value;
  switch (peek()) {
    case '{':
    case '[': read_members(place, depth, *at_ == '{'); return place;
    case '"':
      value.kind = JsonKind::text;
      value.text = read_text();
      break;
    default:
      if (skip_word("true") || skip_word("false")) {
        value.kind = JsonKind::boolean;
        value.flag = at_[-2] == 'u';
      } else if (!skip_word("null")) {
        read_number(value);
      }
  }
  values_[static_cast<std::size_t>(place)] = value;
  return place;
}

void Json::read_members(std::int32_t place, int depth, bool keyed) {
  const char closing = keyed ? '}' : ']';
  JsonValue found;
  found.kind = keyed ? JsonKind::object : JsonKind::list;
  ++at_;
  skip_space();
  std::int32_t last = -1;
  while (peek() != closing) {
    if (last >= 0) {
      expect(',');
      skip_space();
    }
    std::string_view key;
    if (keyed) {
      if (peek() != '"') wrong("a name is missing");
      key = read_text();
      skip_space();
      expect(':');
      skip_space();
    }
    const std::int32_t member = read_value(depth + 1);
    values_[static_cast<std::size_t>(member)].key = key;
    (last < 0 ? found.first : values_[static_cast<std::size_t>(last)].next) = member;
    last = member;
    ++found.count;
    skip_space();
  }
  ++at_;
  values_[static_cast<std::size_t>(place)] = found;
}

void Json::read_number(JsonValue& value) {
  const char* start = at_;
  const auto digits = [this] {
    if (!is_digit(peek())) wrong("a number has no digits");
    while (at_ < end_ && is_digit(*at_)) ++at_;
  };
  if (peek() == '-') ++at_;
  const bool zero = peek() == '0';
  const char* first = at_;
  digits();
  if (zero && at_ - first > 1) wrong("a number begins with zeros");
  bool is_whole = true;
  if (at_ < end_ && *at_ == '.') {
    is_whole = false;
    ++at_;
    digits();
  }
  if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
    is_whole = false;
    ++at_;
    if (peek() == '+' || *at_ == '-') ++at_;
    digits();
  }
  const auto length = static_cast<std::size_t>(at_ - start);
  if (length > MAX_DIGITS) wrong("a number has too many digits");
  char copy[MAX_DIGITS + 1] = {};
  std::memcpy(copy, start, length);
  value.number = std::strtod(copy, nullptr);
  value.kind = is_whole ? JsonKind::whole : JsonKind::number;
  if (!std::isfinite(value.number)) wrong("a number is not finite");
  if (!is_whole) return;
  if (std::fabs(value.number) >= 9.3e18) wrong("a whole number is too large");
  const bool negative = *copy == '-';
  std::uint64_t sum = 0;
  for (const char* at = copy + negative; *at != 0; ++at)
    sum = 10 * sum + static_cast<std::uint64_t>(*at - '0');
  if (sum > (std::uint64_t{1} << 63) - (negative ? 0 : 1)) wrong("a whole number is too large");
  value.whole = static_cast<std::int64_t>(negative ? 0 - sum : sum);
}

std::string_view Json::read_text() {
  char *start = ++at_, *to = start;
  while (peek() != '"') {
    if (static_cast<unsigned char>(*at_) < 0x20) wrong("a text holds a control sign");
    if (*at_ == '\\')
      to = read_escape(to);
    else
      *to++ = *at_++;
  }
  ++at_;
  return {start, static_cast<std::size_t>(to - start)};
}

unsigned Json::read_hex() {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char sign = peek();
    const bool letter = (sign >= 'a' && sign <= 'f') || (sign >= 'A' && sign <= 'F');
    if (!letter && !is_digit(sign)) wrong("an escape is not one");
    code = 16 * code + static_cast<unsigned>(letter ? (sign | 0x20) - 'a' + 10 : sign - '0');
  }
  return code;
}

char* Json::read_escape(char* to) {
  ++at_;
  const char sign = peek();
  ++at_;
  if (sign == 'u') {
    unsigned code = read_hex();
    if (code >= 0xd800 && code < 0xdc00 && skip_word("\\u")) {
      const unsigned low = read_hex();
      if (low < 0xdc00 || low >= 0xe000) wrong("an escape is not one");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    return write_utf8(to, code);
  }
  constexpr std::string_view NAMES = "\"\\/bfnrt", SIGNS = "\"\\/\b\f\n\r\t";
  const std::size_t place = NAMES.find(sign);
  if (place == NAMES.npos) wrong("an escape is not one");
  *to++ = SIGNS[place];
  return to;
}

// Digits and exponent are the fewest that give the same number again; Python writes them plainly
// from 1e-4 to below 1e16.
std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[40];
  for (int digits = 0; digits < 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*e", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  const std::string_view whole(text);
  const std::size_t e = whole.find('e');
  const int exponent = std::atoi(text + e + 1);
  const std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : whole.substr(0, e))
    if (is_digit(c)) digits += c;
  if (exponent < -4 || exponent >= 16) {
    const std::string rest = digits.size() > 1 ? "." + digits.substr(1) : "";
    std::snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return sign + digits[0] + rest + text;
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto before = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() < before) digits.append(before - digits.size(), '0');
  const std::string after = digits.substr(before);
  return sign + digits.substr(0, before) + "." + (after.empty() ? "0" : after);
}

}  // namespace fedtiny::device
