/**
 * Saves and loads what a program needs to go on exactly, or weights alone: {@link dev.chagres.checkpoint.RunState}, on one rank as on many, whatever they divide;
 * in one file, or in the folder of a run: {@link dev.chagres.checkpoint.CheckpointFolder}.
 */
@NullMarked
package dev.chagres.checkpoint;

import org.jspecify.annotations.NullMarked;
