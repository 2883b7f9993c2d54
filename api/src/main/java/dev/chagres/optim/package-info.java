/** Optimizers over flat parameter buffers, gradient clipping, and learning-rate schedules. */
@NullMarked
package dev.chagres.optim;

import org.jspecify.annotations.NullMarked;
