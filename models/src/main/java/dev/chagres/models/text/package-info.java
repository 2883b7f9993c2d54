/**
 * Text that decoders learn from: tokenizers of Hugging Face's folders, and sequences of text files.
 *
 * <p>{@link dev.chagres.models.text.Tokenizer} needs the library {@code ai.djl.huggingface:tokenizers}, and files of Parquet need {@code
 * dev.hardwood:hardwood-core}, which a program names itself.
 */
@NullMarked
package dev.chagres.models.text;

import org.jspecify.annotations.NullMarked;
