/**
 * Saves and loads what a program needs to go on exactly, or weights alone: {@link dev.chagres.checkpoint.RunState}, on one rank as on many, whatever they divide.
 */
@NullMarked
package dev.chagres.checkpoint;

import org.jspecify.annotations.NullMarked;
