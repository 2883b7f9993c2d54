#include "unresolved.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

namespace chagres::guard {

namespace {

struct Tables {
  const ElfW(Sym) *symbols = nullptr;
  const char *names = nullptr;
  std::size_t undefined_end = 0;  // symbols before this index are not in the hash table: the undefined ones are there
};

Tables tables_of(const link_map *map) {
  Tables tables;
  for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_SYMTAB:
        tables.symbols = reinterpret_cast<const ElfW(Sym) *>(entry->d_un.d_ptr);
        break;
      case DT_STRTAB:
        tables.names = reinterpret_cast<const char *>(entry->d_un.d_ptr);
        break;
      case DT_GNU_HASH:
        tables.undefined_end = reinterpret_cast<const std::uint32_t *>(entry->d_un.d_ptr)[1];
        break;
      case DT_HASH:
        if (tables.undefined_end == 0) {
          tables.undefined_end = reinterpret_cast<const std::uint32_t *>(entry->d_un.d_ptr)[1];
        }
        break;
      default:
        break;
    }
  }
  return tables;
}

bool is_defined_somewhere(void *library, const char *name) {
  return dlsym(library, name) != nullptr || dlsym(RTLD_DEFAULT, name) != nullptr;
}

}  // namespace

std::vector<std::string> unresolved_symbols(void *library) {
  std::vector<std::string> unresolved;
  link_map *map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return unresolved;
  const Tables tables = tables_of(map);
  if (tables.symbols == nullptr || tables.names == nullptr) return unresolved;
  for (std::size_t i = 1; i < tables.undefined_end; ++i) {
    const ElfW(Sym) &symbol = tables.symbols[i];
    if (symbol.st_shndx != SHN_UNDEF || ELF64_ST_BIND(symbol.st_info) == STB_WEAK) continue;
    const char *const name = tables.names + symbol.st_name;
    if (!is_defined_somewhere(library, name)) unresolved.push_back(name);
  }
  return unresolved;
}

}  // namespace chagres::guard
