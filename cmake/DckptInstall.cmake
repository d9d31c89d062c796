# Install rules and the package that find_package(dckpt) finds.
