/**
 * Tensors in files of the safetensors format, which PyTorch, Transformers and vLLM read and write, too.
 *
 * <p>{@link dev.chagres.io.SafetensorsFile} reads, {@link dev.chagres.io.SafetensorsWriter} writes. Both use only host memory, and need
 * neither a device nor the native libraries. Numbers are little-endian, in files and in memory.
 */
@NullMarked
package dev.chagres.io;

import org.jspecify.annotations.NullMarked;
