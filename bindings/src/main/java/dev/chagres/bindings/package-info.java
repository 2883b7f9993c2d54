/**
 * What every call into a native library leans on: choosing and opening the libraries, checking their status codes, the
 * exceptions they become, and a doctor for when they are not found.
 *
 * <p>The functions themselves are in the generated packages {@code dev.chagres.bindings.te}, {@code .ops}, {@code .nccl},
 * {@code .cudnn} and {@code .cuda}; call {@link dev.chagres.bindings.NativeLibraries#ensureLoaded()} before the first of
 * them.
 */
@NullMarked
package dev.chagres.bindings;

import org.jspecify.annotations.NullMarked;
