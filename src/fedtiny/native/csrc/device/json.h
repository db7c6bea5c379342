// JSON, read in place: a text becomes a list of values that point into it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bytes.h"

namespace fedtiny::device {

class Json;

enum class JsonKind : std::uint8_t { null, boolean, whole, number, text, list, object };

// One value; what is in a list or an object follows as a chain.
struct JsonValue {
  JsonKind kind = JsonKind::null;
  bool flag = false;
  std::int32_t first = -1, next = -1, count = 0;
  std::int64_t whole = 0;
  double number = 0;
  std::string_view key, text;
};

// A value together with the document that it is of. What is not of the kind asked for is refused.
class JsonView {
 public:
  JsonView(const Json& document, std::int32_t place) : document_(&document), place_(place) {}

  bool is(JsonKind kind) const;
  bool is_null() const { return is(JsonKind::null); }
  std::string_view key() const;
  std::string_view text(const char* what) const;
  bool flag(const char* what) const;
  double number(const char* what) const;
  std::int64_t whole(const char* what) const;
  std::int64_t whole(const char* what, std::int64_t least, std::int64_t most) const;

  // Of a list or an object.
  std::vector<JsonView> items(const char* what) const;
  bool has(std::string_view name) const;
  JsonView at(std::string_view name) const;
  JsonView at(std::size_t place, const char* what) const;

 private:
  const JsonValue& value() const;
  std::int32_t find(std::string_view name) const;

  const Json* document_;
  std::int32_t place_;
};

class Json {
 public:
  // The text is changed by this: what is escaped in it is written plainly.
  Json(char* text, std::size_t size);

  JsonView root() const { return {*this, 0}; }
  const JsonValue& value(std::int32_t place) const {
    return values_[static_cast<std::size_t>(place)];
  }

 private:
  std::int32_t read_value(int depth);
  void read_members(std::int32_t place, int depth, bool keyed);
  void read_number(JsonValue& value);
  std::string_view read_text();
  char* read_escape(char* to);
  unsigned read_hex();
  bool skip_word(std::string_view word);
  void skip_space();
  void expect(char sign);
  char peek();

  char *at_, *end_;
  std::vector<JsonValue> values_;
};

// A number as Python's json writes it.
std::string json_number(double value);

}  // namespace fedtiny::device
