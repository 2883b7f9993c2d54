/** What the exported packages share and users do not see. */
@NullMarked
package dev.chagres.internal;

import org.jspecify.annotations.NullMarked;
