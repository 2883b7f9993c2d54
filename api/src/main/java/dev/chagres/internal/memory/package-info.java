/** Device memory below the public types: chunks, workspaces, the state of a device, the leak report. */
@NullMarked
package dev.chagres.internal.memory;

import org.jspecify.annotations.NullMarked;
