/** Commands about proteins, beside training: what a trained ESM-2 computes, written to files; and what all commands share. */
@NullMarked
package dev.chagres.trainer.command;

import org.jspecify.annotations.NullMarked;
