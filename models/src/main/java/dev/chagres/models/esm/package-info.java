/** ESM-2, a protein language model, built from the layers of {@code dev.chagres}. */
@NullMarked
package dev.chagres.models.esm;

import org.jspecify.annotations.NullMarked;
