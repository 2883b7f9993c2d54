/* Attributes of configuration objects: checked, copied in and out. */
#include "runtime/handles.h"

namespace chagres::reference {

size_t attribute_size(const AttributeTable &table, int number, Caller caller) {
  if (number < 0 || number >= table.count) {
    fail(caller, text("Invalid ", table.kind, ": expected 0 to ", table.count - 1, ", got ", number));
  }
  return table.attributes[number].size;
}

static void check_buffer(const AttributeTable &table, int number, size_t needed, size_t size, const Caller &caller) {
  if (size < needed) {
    fail(caller, text("Buffer is too small for ", table.kind, " ", number, ": needs ", needed, " bytes, got ", size));
  }
}

void set_attribute(const AttributeTable &table, void *object, int number, const void *buffer, size_t size,
                   Caller caller) {
  const size_t needed = attribute_size(table, number, caller);
  check_buffer(table, number, needed, size, caller);
  if (buffer == nullptr) fail(caller, text("Invalid buffer (got NULL) for ", table.kind, " ", number));
  const Attribute &attribute = table.attributes[number];
  char *place = static_cast<char *>(object) + attribute.offset;
  if (attribute.kind == Attribute::Flag) {
    *place = *static_cast<const char *>(buffer) != 0;
  } else if (attribute.kind == Attribute::Value) {
    std::memcpy(place, buffer, needed);
  }
}

void get_attribute(const AttributeTable &table, const void *object, int number, void *buffer, size_t size,
                   size_t *size_written, Caller caller) {
  const size_t needed = attribute_size(table, number, caller);
  if (size_written != nullptr) *size_written = needed;
  if (buffer == nullptr) return;
  check_buffer(table, number, needed, size, caller);
  std::memcpy(buffer, static_cast<const char *>(object) + table.attributes[number].offset, needed);
}

}  // namespace chagres::reference
