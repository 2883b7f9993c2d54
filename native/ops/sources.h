/* The kernels' sources, embedded when the library is built (embed.cmake). */
#ifndef CHAGRES_OPS_SOURCES_H
#define CHAGRES_OPS_SOURCES_H

namespace chagres::ops {

struct Source {
  const char *name; /* "rows.cu" */
  const char *text;
};

extern const Source kSources[]; /* the .cu files */
extern const int kSourceCount;
extern const char *const kHeaders[]; /* the texts of the .cuh files, and their names */
extern const char *const kHeaderNames[];
extern const int kHeaderCount;

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_SOURCES_H */
