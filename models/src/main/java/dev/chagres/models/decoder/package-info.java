/** Decoders that predict the next token, as Llama, Qwen and Mistral do, built from the layers of {@code dev.chagres}. */
@NullMarked
package dev.chagres.models.decoder;

import org.jspecify.annotations.NullMarked;
