#include "tools/dckpt/grammar/completion_scripts.h"

namespace dckpt::tool {
namespace {

// Bash splits words at '=' and ':' (COMP_WORDBREAKS) and replaces only the part behind them.
constexpr std::string_view kBash = R"script(# bash completion for dckpt
_dckpt() {
  local line=${COMP_LINE:0:COMP_POINT} tool=$1 paths='' kept='' value about typed
  type -P -- "$tool" >/dev/null || tool=dckpt
  typed=${line##*[[:space:]]}
  typed=${typed//[\"\'\\]/}
  [[ $COMP_WORDBREAKS == *=* ]] && kept=${typed%"${typed##*[=:]}"}
  COMPREPLY=()
  while IFS=$'\t' read -r value about; do
    case $value in
      :*) paths=${value#:} ;;
      *) COMPREPLY+=("${value#"$kept"}") ;;
    esac
  done < <("$tool" __complete "$line" 2>/dev/null)
  if [[ ${#COMPREPLY[@]} -eq 0 ]]; then
    case $paths in
      files) compopt -o default ;;
      folders) compopt -o dirnames ;;
    esac
  elif [[ $paths == files ]]; then
    compopt -o filenames
    while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "$2")
  elif [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[./=] ]]; then
    compopt -o nospace
  fi
}
complete -F _dckpt dckpt
)script";

constexpr std::string_view kZsh = R"script(#compdef dckpt
_dckpt() {
  local tool=$words[1] paths='' row value about tab=$'\t'
  local line="${(j: :)words[1,CURRENT-1]} $QIPREFIX$PREFIX"
  local -a whole begun
  whence -p -- "${~tool}" >/dev/null 2>&1 || tool=dckpt
  for row in "${(@f)$("${~tool}" __complete "$line" 2>/dev/null)}"; do
    value=${row%%$tab*} about=${row#*$tab}
    about=${about:+:$about}
    case $value in
      '') ;;
      :*) paths=${value#:} ;;
      *[./=]) begun+=("${value//:/\\:}$about") ;;
      *) whole+=("${value//:/\\:}$about") ;;
    esac
  done
  local found=1
  (( $#whole )) && _describe -t values value whole && found=0
  (( $#begun )) && _describe -t values value begun -S '' && found=0
  if [[ -n $paths ]]; then
    [[ $PREFIX == --*=* ]] && compset -P '*='
    if [[ $paths == folders ]]; then _files -/ && found=0; else _files && found=0; fi
  fi
  return found
}
if [[ $funcstack[1] == _dckpt ]]; then
  _dckpt "$@"
else
  compdef _dckpt dckpt
fi
)script";

constexpr std::string_view kFish = R"script(# fish completion for dckpt
function __dckpt_complete
  set -l words (commandline -opc)
  set -l tool $words[1]
  command -sq -- $tool; or set tool dckpt
  set -l token (commandline -ct)
  for row in (command $tool __complete (commandline -cp | string collect) 2>/dev/null)
    switch $row
      case ':*'
        set -l option (string match -r -- '^--[^=]*=' $token)
        for path in (__fish_complete_path (string replace -r -- '^--[^=]*=' '' $token))
          if test $row = :files; or string match -q -- '*/*' (string split -m 1 \t $path)[1]
            echo -- "$option$path"
          end
        end
      case '*'
        echo -- $row
    end
  end
end
complete -c dckpt -f -a '(__dckpt_complete)'
)script";

}  // namespace

const std::vector<CompletionScript>& completion_scripts() {
  static const std::vector<CompletionScript> scripts = {
      {"bash", kBash, "bash-completion/completions/dckpt"},
      {"zsh", kZsh, "zsh/site-functions/_dckpt"},
      {"fish", kFish, "fish/vendor_completions.d/dckpt.fish"}};
  return scripts;
}

}  // namespace dckpt::tool
