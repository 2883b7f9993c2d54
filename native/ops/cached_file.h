/* Files of the cache folder: the hash of the content in hexadecimal, then the content, so that damaged ones are found. */
#ifndef CHAGRES_OPS_CACHED_FILE_H
#define CHAGRES_OPS_CACHED_FILE_H

#include <string>

namespace chagres::ops {

/* False: there is no such file, or it is damaged. */
bool read_cached(const std::string &path, std::string &content);

/* Writes beside the final name and renames, so that no reader, in this process or another, sees half a file. The problem, ""
 * when there is none. */
std::string write_cached(const std::string &path, const std::string &content);

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_CACHED_FILE_H */
