/**
 * This project's own native libraries, as resources in {@code dev/chagres/native/<os>-<arch>/}: a folder that is no
 * package, so that {@code dev.chagres.bindings} finds them without being opened to.
 */
module dev.chagres.nativelibraries {}
