/* Kinds of arguments for smoke.cpp: one value for each type of argument, or one drawn for each place from a seed. */
#ifndef CHAGRES_TESTS_GUARD_SMOKE_VALUES_HPP
#define CHAGRES_TESTS_GUARD_SMOKE_VALUES_HPP

#include <cstdint>

#include "chagres/te.h"
#include "handles.hpp"

using chagres::guard::Kind;

constexpr int tensor_count = 16;
constexpr int list_length = 128;  // the largest count that is drawn and not refused; repeats the tensors
constexpr int kind_count = static_cast<int>(Kind::count);

struct Values {
  void *handles[kind_count];
  void *address;
  void *result;
  const char *string;
  NVTETensor *tensors;
  NVTETensor **lists;
  NVTETensorPack *pack;
  NVTEShape shape;
  NVTECommWindow window;
  cudaStream_t stream;
  long long integer;
  int enumeration;
  float floating;
  bool is_set;
  unsigned seed;  // 0: the values above for every argument

  void *handle(int place, Kind kind) const;
  long long number(int place) const;
  int enumerator(int place) const;
  float real(int place) const;
  bool flag(int place) const;
  const char *text(int place) const;
};

struct Mode {
  const char *name;
  Values (*values)();
};

extern const Mode modes[];
extern const int mode_count;
/* The first modes pass nothing but what the guard can see to be wrong, so that all their calls can share a process. */
constexpr int harmless_modes = 4;

/* Live handles of many shapes and types, numbers at the edges, drawn from the seed (not 0) for each argument. */
Values drawn(unsigned seed);

#endif
