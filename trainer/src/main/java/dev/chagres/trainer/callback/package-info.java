/** What follows a run beside reports and saved files: evaluation on held-out data, early stopping, learning rates, TensorBoard's files. */
@NullMarked
package dev.chagres.trainer.callback;

import org.jspecify.annotations.NullMarked;
