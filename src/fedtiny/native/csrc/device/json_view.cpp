// Values of a JSON text as they are asked for.
#include "json.h"

namespace fedtiny::device {

const JsonValue& JsonView::value() const { return document_->value(place_); }
bool JsonView::is(JsonKind kind) const { return value().kind == kind; }
std::string_view JsonView::key() const { return value().key; }

std::string_view JsonView::text(const char* what) const {
  if (!is(JsonKind::text)) refuse(std::string(what) + " must be a text");
  return value().text;
}

bool JsonView::flag(const char* what) const {
  if (!is(JsonKind::boolean)) refuse(std::string(what) + " must be true or false");
  return value().flag;
}

double JsonView::number(const char* what) const {
  if (!is(JsonKind::number) && !is(JsonKind::whole))
    refuse(std::string(what) + " must be a number");
  return value().number;
}

std::int64_t JsonView::whole(const char* what) const {
  if (!is(JsonKind::whole)) refuse(std::string(what) + " must be a whole number");
  return value().whole;
}

std::int64_t JsonView::whole(const char* what, std::int64_t least, std::int64_t most) const {
  const std::int64_t found = whole(what);
  if (found < least || found > most)
    refuse(std::string(what) + " must lie in " + std::to_string(least) + " to " +
           std::to_string(most) + ", not " + std::to_string(found));
  return found;
}

std::vector<JsonView> JsonView::items(const char* what) const {
  if (!is(JsonKind::list) && !is(JsonKind::object))
    refuse(std::string(what) + " must be a list or an object");
  std::vector<JsonView> found;
  found.reserve(static_cast<std::size_t>(value().count));
  for (std::int32_t at = value().first; at >= 0; at = document_->value(at).next)
    found.emplace_back(*document_, at);
  return found;
}

std::int32_t JsonView::find(std::string_view name) const {
  std::int32_t found = -1;
  if (is(JsonKind::object))
    for (std::int32_t at = value().first; at >= 0; at = document_->value(at).next)
      if (document_->value(at).key == name) found = at;  // the last counts, as in Python
  return found;
}

bool JsonView::has(std::string_view name) const { return find(name) >= 0; }

JsonView JsonView::at(std::string_view name) const {
  const std::int32_t found = find(name);
  if (found < 0) refuse("'" + std::string(name) + "' is missing");
  return {*document_, found};
}

JsonView JsonView::at(std::size_t place, const char* what) const {
  const std::vector<JsonView> found = items(what);
  if (place >= found.size()) refuse(std::string(what) + " is too short");
  return found[place];
}

}  // namespace fedtiny::device
