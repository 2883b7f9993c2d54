# Writes SHA256SUMS of the files in FOLDER, which Java compares before it opens what it has unpacked.
# usage: cmake -DFOLDER=... -P checksums.cmake
file(GLOB files RELATIVE "${FOLDER}" "${FOLDER}/*.so*")
set(lines "")
foreach(name ${files})
  file(SHA256 "${FOLDER}/${name}" sum)
  string(APPEND lines "${sum}  ${name}\n")
endforeach()
file(WRITE "${FOLDER}/SHA256SUMS" "${lines}")
