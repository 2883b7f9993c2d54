package dev.chagres.bindings;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * Why a library's file cannot be opened or unpacked, and what mends that: the one place that knows what the words of the dynamic loader,
 * the JVM and the file system mean. The exceptions of loading and the doctor ask here.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: dlerror(3), with the texts of glibc and musl; proc_pid_mountinfo(5).
 *
 * @param cause in words; {@code ""} when the text tells no known one
 * @param remedy the line that mends it
 */
record LoadFault(String cause, String remedy) {

    /**
     * How a library's files come to their place.
     *
     * @param anew the line that brings them, or brings them again
     * @param elsewhere what names another place, such as {@code -Dchagres.cache=DIR}
     */
    record Supply(String anew, String elsewhere) {}

    /** A refused file, and the words in which it was refused. */
    private record Refusal(Path file, Supply supply, Matcher said, Surroundings surroundings) {
        String group(int number) {
            return String.valueOf(said.group(number));
        }
    }

    /** What is concluded from a text. */
    @FunctionalInterface
    private interface Conclusion {
        LoadFault of(Refusal refusal);
    }

    /** The first that matches counts. */
    private record Rule(Pattern text, Conclusion conclusion) {
        static Rule of(String text, Conclusion conclusion) {
            return new Rule(Pattern.compile(text), conclusion);
        }
    }

    /** Debian's packages of libraries that ours and NVIDIA's need. */
    private static final Map<String, String> PACKAGES = Map.of(
            "libstdc++.so.6", "libstdc++6",
            "libgcc_s.so.1", "libgcc-s1",
            "libgomp.so.1", "libgomp1",
            "libgfortran.so.5", "libgfortran5",
            "libquadmath.so.0", "libquadmath0",
            "libopenblas.so.0", "libopenblas0",
            "libz.so.1", "zlib1g");

    private static final List<Rule> RULES = List.of(
            Rule.of("(?i)failed to map segment.*cannot allocate memory|cannot map .*memory", _ -> noMemory()),
            Rule.of("failed to map segment.*Permission denied", LoadFault::forbidden),
            Rule.of("failed to map segment", LoadFault::notExecutable),
            Rule.of(
                    "cannot (?:restore segment prot|apply additional memory protection|enable executable stack"
                            + "|make segment writable)",
                    LoadFault::forbidden),
            Rule.of(
                    "version [`'](GLIBC_[\\w.]+)' not found",
                    refusal -> new LoadFault(
                            "it needs " + refusal.group(1) + ", and this system's C library (glibc) is older",
                            "use a newer system or container image (ldd --version shows the version of glibc), or build the"
                                    + " library on this system")),
            Rule.of(
                    "version [`']((?:GLIBCXX|CXXABI)_[\\w.]+)' not found",
                    refusal -> new LoadFault(
                            "it needs " + refusal.group(1) + ", and the libstdc++.so.6 that was opened is older",
                            "apt install libstdc++6, or take an older libstdc++.so.6 (Conda has its own) off"
                                    + " LD_LIBRARY_PATH")),
            Rule.of(
                    "([\\w.+-]+): version [`']([^']+)' not found",
                    refusal -> new LoadFault(
                            "it needs " + refusal.group(2) + " of " + refusal.group(1)
                                    + ", and the one that was opened has another version",
                            "bring the versions together: " + refusal.supply.anew())),
            Rule.of(
                    "static TLS block",
                    refusal -> new LoadFault(
                            "the memory that glibc keeps for thread-local variables of libraries is used up",
                            "start Java with the variable LD_PRELOAD=" + ForeignText.plain(refusal.file) + ", or with"
                                    + " GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384")),
            Rule.of(
                    "cannot open shared object file: Permission denied",
                    refusal -> notReadable("this user may not read it, or a folder above it", refusal.supply)),
            Rule.of(
                    "(?i)too many open files",
                    _ -> new LoadFault("this process may not open more files", "raise the limit: ulimit -n 65536")),
            Rule.of("(?:^|[\\s/])([\\w.+-]+): cannot open shared object file", LoadFault::missing),
            Rule.of("Error loading shared library ([\\w.+-]+)(?:: [^(]*)?", _ -> musl()),
            Rule.of("Error relocating", _ -> musl()),
            Rule.of(
                    "undefined symbol: (\\w+)",
                    refusal -> new LoadFault(
                            "it needs the function " + refusal.group(1)
                                    + ", which no opened library has: versions are mixed",
                            "bring the versions together: " + refusal.supply.anew())),
            Rule.of(
                    "(\\S+): (?:file too short|invalid ELF header|cannot read file data|wrong ELF class|ELF (?:file|load))",
                    LoadFault::damaged));

    /**
     * Why a file that was not opened yet cannot serve; empty when nothing speaks against it.
     *
     * @param supply how the file came to its place
     */
    static Optional<LoadFault> before(Path file, Supply supply, Surroundings surroundings) {
        Optional<String> fault = ElfFile.fault(file, surroundings.processor());
        if (fault.isPresent()) {
            String cause = file.getFileName() + " is " + fault.get();
            boolean isKept = Files.exists(file) && !Files.isReadable(file);
            return Optional.of(isKept ? notReadable(cause, supply) : new LoadFault(cause, supply.anew()));
        }
        return MountPoint.noExec(file, surroundings).map(mount -> noExec(mount, supply));
    }

    /**
     * Why the dynamic loader, or the JVM on its behalf, refused a file.
     *
     * @param text the loader's
     * @param supply how the file came to its place
     */
    static LoadFault of(Path file, String text, Supply supply, Surroundings surroundings) {
        Optional<LoadFault> seen = Files.exists(file) ? before(file, supply, surroundings) : Optional.empty();
        return seen.or(() -> RULES.stream()
                        .flatMap(rule -> {
                            Matcher said = rule.text.matcher(text);
                            return said.find()
                                    ? Stream.of(rule.conclusion.of(new Refusal(file, supply, said, surroundings)))
                                    : Stream.of();
                        })
                        .findFirst())
                .orElseGet(() -> new LoadFault("", supply.anew()));
    }

    /** Why files cannot be unpacked into the cache. */
    static LoadFault of(IOException failure, Path cache, Supply supply) {
        String text = failure.toString();
        String elsewhere = "name another folder: " + supply.elsewhere();
        if (text.contains("No space left on device") || text.contains("Disk quota exceeded")) {
            return new LoadFault("no space is left for " + cache, "free some, or " + elsewhere);
        }
        if (text.contains("Read-only file system")) {
            return new LoadFault(cache + " is on a file system that is mounted read-only", elsewhere);
        }
        if (failure instanceof FileAlreadyExistsException || text.contains("Not a directory")) {
            return new LoadFault(
                    fileAmong(cache).map(Path::toString).orElse(cache + " or a part of it")
                            + " is a file, where a folder is needed",
                    "move the file away, or " + elsewhere);
        }
        if (text.contains("AccessDenied") || text.contains("ermission denied") || text.contains("not permitted")) {
            return new LoadFault(
                    "this user may not write to " + cache, "give it the permission (ls -ld, chmod), or " + elsewhere);
        }
        return new LoadFault("", supply.anew());
    }

    /** The first part of a path that is there and is no folder. */
    private static Optional<Path> fileAmong(Path path) {
        Path part = path;
        while (part != null && !Files.exists(part)) {
            part = part.getParent();
        }
        return Optional.ofNullable(part).filter(found -> !Files.isDirectory(found));
    }

    private static LoadFault noExec(Path mount, Supply supply) {
        return new LoadFault(
                "the file system " + mount + " is mounted noexec, so no library on it can be opened",
                "name a folder on a file system without noexec: " + supply.elsewhere());
    }

    private static LoadFault notExecutable(Refusal refusal) {
        return new LoadFault(
                "the system does not let this process run code from " + refusal.file
                        + ": its file system is mounted noexec, or a security module forbids it",
                "name a folder on a file system without noexec: " + refusal.supply.elsewhere());
    }

    private static LoadFault forbidden(Refusal refusal) {
        return new LoadFault(
                "a security module, such as SELinux or AppArmor, does not let this process run code from "
                        + refusal.file,
                "ausearch -m avc -ts recent, or dmesg, shows the rule; allow it (SELinux: chcon -t lib_t FILE), or name"
                        + " another place: " + refusal.supply.elsewhere());
    }

    private static LoadFault noMemory() {
        return new LoadFault(
                "there is no memory to map it", "raise the limits of this process (ulimit -v, the container's memory)");
    }

    private static LoadFault notReadable(String cause, Supply supply) {
        return new LoadFault(
                cause, "give this user the permission (ls -l, chmod), or name another place: " + supply.elsewhere());
    }

    /** A library without a path is one that the file needs; the file itself is there, or {@link #before} tells of it. */
    private static LoadFault missing(Refusal refusal) {
        String name = refusal.group(1);
        if (refusal.file.endsWith(name)) {
            return new LoadFault("", refusal.supply.anew());
        }
        String brought = Stream.of(VendorLibrary.values())
                .filter(library -> library.parts().contains(name))
                .map(library -> "pip install " + library.requirement())
                .findFirst()
                .or(() -> Optional.ofNullable(PACKAGES.get(name)).map("apt install "::concat))
                .orElse(
                        name.equals(Driver.LIBRARY)
                                ? "install NVIDIA's driver"
                                : "install the package that has " + name);
        return new LoadFault("it needs " + name + ", which is not on the loader's path", brought);
    }

    /** Mostly another library that the file needs: of the file itself {@link #before} tells more. */
    private static LoadFault damaged(Refusal refusal) {
        String name = refusal.group(1);
        return new LoadFault(
                ForeignText.plain(name) + " is damaged, or no shared library for this machine",
                refusal.file.endsWith(name) ? refusal.supply.anew() : "install the package that has " + name + " anew");
    }

    private static LoadFault musl() {
        return new LoadFault(
                "this JVM runs on another C library than glibc (Alpine has musl)",
                "use a system or container image with glibc, such as Debian, Ubuntu or Red Hat");
    }
}
