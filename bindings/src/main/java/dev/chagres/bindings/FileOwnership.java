package dev.chagres.bindings;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/**
 * Whether somebody else may have put a file where it is: native code runs with all rights of this process, so a library is opened only
 * where it, and every folder above it, belongs to this user or to root, and nobody else may write there.
 *
 * <p>A folder with the sticky bit, such as {@code /tmp}, keeps others from what is in it. A group of the same number as the owner is the owner's own.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: chmod(2), stat(2).
 */
public final class FileOwnership {
    private static final int GROUP_WRITES = 0020;
    private static final int OTHERS_WRITE = 0002;
    private static final int STICKY = 01000;
    private static final int ROOT = 0;

    private FileOwnership() {}

    /** Returns why what the file says may come from another user; empty when the file and its folders are this user's or root's alone. */
    public static Optional<String> distrust(Path file) {
        return fault(file, new LoadFault.Supply("", "")).map(LoadFault::cause);
    }

    /** This user's number; -1 where the system does not tell. */
    static int user() {
        try {
            return (int) Files.getAttribute(Path.of("/proc/self"), "unix:uid");
        } catch (IOException | UnsupportedOperationException | IllegalArgumentException unknown) {
            return -1;
        }
    }

    /** Why the file, or the nearest folder of it that is there, is not trusted; empty when it is. */
    static Optional<LoadFault> fault(Path file, LoadFault.Supply supply) {
        try {
            Path existing = file.toAbsolutePath();
            while (!Files.exists(existing) && existing.getParent() != null) {
                existing = existing.getParent();
            }
            int user = user();
            for (Path part = existing.toRealPath(); part != null; part = part.getParent()) {
                Optional<LoadFault> fault = fault(part, user, supply);
                if (fault.isPresent()) {
                    return fault;
                }
            }
            return Optional.empty();
        } catch (IOException | UnsupportedOperationException | IllegalArgumentException unknown) {
            return Optional.of(new LoadFault(
                    "the owner of " + file + " cannot be read (" + unknown + ")",
                    "name another folder: " + supply.elsewhere()));
        }
    }

    /** Of this file or folder alone, as user {@code user} sees it. */
    static Optional<LoadFault> fault(Path part, int user, LoadFault.Supply supply) throws IOException {
        Map<String, Object> seen = Files.readAttributes(part, "unix:uid,gid,mode");
        int owner = number(seen, "uid");
        int mode = number(seen, "mode");
        String elsewhere = "name another folder: " + supply.elsewhere();
        if (owner != user && owner != ROOT) {
            return Optional.of(new LoadFault(
                    part + " belongs to the user with number " + owner
                            + ", who may have changed it; this one has number " + user,
                    elsewhere));
        }
        boolean isOwnGroup = owner == number(seen, "gid");
        boolean isOpen = (mode & OTHERS_WRITE) != 0 || (mode & GROUP_WRITES) != 0 && !isOwnGroup;
        boolean isSticky = (mode & STICKY) != 0 && Files.isDirectory(part);
        if (isOpen && !isSticky) {
            return Optional.of(new LoadFault(
                    "other users may write to " + part + " (mode " + Integer.toOctalString(mode & 07777) + ")",
                    "take the permission away (chmod go-w " + part + "), or " + elsewhere));
        }
        return Optional.empty();
    }

    private static int number(Map<String, Object> seen, String name) {
        return (int) Objects.requireNonNull(seen.get(name), name);
    }
}
