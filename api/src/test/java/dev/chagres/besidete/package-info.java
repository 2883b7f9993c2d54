/** Drawn layers beside Transformer Engine for PyTorch: the same weights and inputs on both sides. */
@NullMarked
package dev.chagres.besidete;

import org.jspecify.annotations.NullMarked;
