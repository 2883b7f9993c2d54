/** What ranks compare with each other before they go on. */
@NullMarked
package dev.chagres.internal.ranks;

import org.jspecify.annotations.NullMarked;
