/**
 * Ranks: threads of this program or processes of one or several hosts, how they find each other, and how those that are left go on when
 * others have failed. {@link dev.chagres.launch.Ranks} starts here.
 */
@NullMarked
package dev.chagres.launch;

import org.jspecify.annotations.NullMarked;
