/** Tensors, their element types and shapes, and host memory that the device can read. */
@NullMarked
package dev.chagres.tensor;

import org.jspecify.annotations.NullMarked;
